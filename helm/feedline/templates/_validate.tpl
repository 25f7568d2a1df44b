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
{{- $keys := list "ca.pem" "role.pem" "role-key.pem" "client.pem" "client-key.pem" "secret" "worker.token" "client.token" "admin.token" }}
{{- include "feedline.validateSecret" (list . $auth.existingSecret $keys "create it from all files of `feedline keys new`") }}
{{- end }}
{{- with .Values.stores.credentialsSecret }}
{{- if .name }}
{{- include "feedline.validateSecret" (list $ .name (list .key) "create it from a file in the format of `--credentials`, or change stores.credentialsSecret") }}
{{- end }}
{{- end }}
{{- end }}

{{/* Checks that a Secret has keys, if Helm can read the cluster. `helm template` cannot; the ConfigMap exists in every
namespace. Argument: a list of the root, the name, the keys and the fix. */}}
{{- define "feedline.validateSecret" -}}
{{- $namespace := (index . 0).Release.Namespace }}
{{- $name := index . 1 }}
{{- $fix := index . 3 }}
{{- if lookup "v1" "ConfigMap" $namespace "kube-root-ca.crt" }}
{{- $secret := lookup "v1" "Secret" $namespace $name }}
{{- if not $secret }}
{{- fail (printf "the Secret %s does not exist in the namespace %s: %s" $name $namespace $fix) }}
{{- end }}
{{- range index . 2 }}
{{- if not (get ($secret.data | default dict) .) }}
{{- fail (printf "the Secret %s in the namespace %s has no key %s: %s" $name $namespace . $fix) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
