{{/* Mistakes that the schema cannot find. Each message is one sentence. */}}

{{- define "feedline.validate" -}}
{{- $auth := .Values.auth }}
{{- if and (eq $auth.mode "existingSecret") (not $auth.existingSecret) }}
{{- fail "auth.existingSecret is empty: set it to the name of a Secret with the files of `feedline keys new`, or set auth.mode to generate" }}
{{- end }}
{{- if and (eq $auth.mode "certManager") (not $auth.certManager.issuerRef.name) }}
{{- fail "auth.certManager.issuerRef.name is empty: set it to the name of an Issuer, or set auth.mode to generate" }}
{{- end }}
{{- $names := list }}
{{- range include "feedline.pools" . | fromJsonArray }}
{{- if has .name $names }}
{{- fail (printf "workers.pools contains two pools with the name %s: give each pool another name" .name) }}
{{- end }}
{{- $names = append $names .name }}
{{- if gt (int .min) (int .max) }}
{{- fail (printf "the pool %s has min %d, which is larger than its max %d" .name (int .min) (int .max)) }}
{{- end }}
{{- end }}
{{- if eq $auth.mode "existingSecret" }}
{{- include "feedline.validateSecret" . }}
{{- end }}
{{- end }}

{{/* Checks the Secret if Helm can read the cluster. `helm template` cannot; the ConfigMap exists in every namespace. */}}
{{- define "feedline.validateSecret" -}}
{{- $name := .Values.auth.existingSecret }}
{{- if lookup "v1" "ConfigMap" .Release.Namespace "kube-root-ca.crt" }}
{{- $secret := lookup "v1" "Secret" .Release.Namespace $name }}
{{- if not $secret }}
{{- fail (printf "the Secret %s does not exist in the namespace %s: create it from the files of `feedline keys new`" $name .Release.Namespace) }}
{{- end }}
{{- range list "ca.pem" "role.pem" "role-key.pem" "client.pem" "client-key.pem" "secret" "worker.token" "client.token" "admin.token" }}
{{- if not (hasKey $secret.data .) }}
{{- fail (printf "the Secret %s has no key %s: create it from all files of `feedline keys new`" $name .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
