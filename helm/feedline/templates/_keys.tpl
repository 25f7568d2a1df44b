{{/* Jobs that create, renew and copy keys with `feedline keys apply`, and their permissions. */}}

{{/* Arguments that create missing keys and renew old ones. */}}
{{- define "feedline.keysArgs" -}}
- keys
- apply
- --secret={{ include "feedline.keysSecret" . }}
- --ca-secret={{ include "feedline.authoritySecret" . }}
- --source={{ get (dict "generate" "all" "certManager" "tokens" "existingSecret" "existing") .Values.auth.mode }}
- --host={{ include "feedline.hosts" . | fromYamlArray | join "," }}
- --days={{ .Values.auth.days }}
- --expires={{ .Values.auth.tokenExpiry }}
{{- $labels := list }}
{{- range $key, $value := include "feedline.podLabels" (list . "keys") | fromYaml }}
{{- $labels = append $labels (printf "%s=%s" $key $value) }}
{{- end }}
- --label={{ join "," $labels }}
- --log={{ .Values.logs.format }}
{{- end }}

{{/* Further arguments that copy keys to the namespaces of trainers. */}}
{{- define "feedline.keysCopyArgs" -}}
{{- if .Values.clients.namespaces -}}
- --copy-to={{ join "," .Values.clients.namespaces }}
- --copy-name={{ .Values.clients.secretName }}
- --copy-scope={{ join "," .Values.clients.scopes }}
{{- with .Values.clients.tenant }}
- --copy-tenant={{ . }}
{{- end }}
{{- if eq .Values.auth.mode "certManager" }}
- --copy-certificate={{ include "feedline.clientSecret" . }}
{{- end }}
{{- end }}
{{- end }}

{{/* Permissions in the namespace of the release. Kubernetes cannot limit `create` to a name. */}}
{{- define "feedline.keysRules" -}}
{{- if include "feedline.createsKeys" . -}}
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ include "feedline.keysSecret" . }}]
  verbs: [get, patch]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ ternary (include "feedline.clientSecret" .) (include "feedline.authoritySecret" .) (eq .Values.auth.mode "certManager") }}]
  verbs: [get]
{{- else -}}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ include "feedline.keysSecret" . }}]
  verbs: [get]
{{- end }}
{{- end }}

{{- define "feedline.copiesKeys" -}}
{{- if and .Values.clients.namespaces (include "feedline.isSecure" .) }}true{{ end }}
{{- end }}

{{/* Whether keys need a service account after the installation. */}}
{{- define "feedline.managesKeys" -}}
{{- if or (include "feedline.createsKeys" .) (include "feedline.copiesKeys" .) }}true{{ end }}
{{- end }}

{{/* Annotations of an object that exists only while a hook runs. Argument: the weight. */}}
{{- define "feedline.keysHook" -}}
annotations:
  helm.sh/hook: pre-install,pre-upgrade
  helm.sh/hook-weight: {{ . | quote }}
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
