{{/* Mistakes that the schema cannot find. Each message is one sentence. */}}

{{- define "feedline.validate" -}}
{{- $auth := .Values.auth }}
{{- if and (eq $auth.mode "existingSecret") (not $auth.existingSecret) }}
{{- fail "auth.existingSecret is empty: set it to the name of a Secret with the files of `feedline keys new`, or set auth.mode to generate" }}
{{- end }}
{{- if and (eq $auth.mode "certManager") (not $auth.certManager.issuerRef.name) }}
{{- fail "auth.certManager.issuerRef.name is empty: set it to the name of an Issuer, or set auth.mode to generate" }}
{{- end }}
{{- include "feedline.validateValidity" . }}
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
{{- if and (eq .Values.autoscaling.mode "builtin") (eq .Values.autoscaling.victimChoice "planner") (eq .Values.workers.kind "StatefulSet") }}
{{- fail "autoscaling.victimChoice is planner, but a StatefulSet always stops the pods with the highest numbers: set it to kubernetes, or set workers.kind to Deployment" }}
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

{{/* Checks that keys live long enough for their renewal, for schedules that run each day or each hour. */}}
{{- define "feedline.validateValidity" -}}
{{- $auth := .Values.auth }}
{{- $fields := regexSplit " +" (trim $auth.renewSchedule) -1 }}
{{- if and (ne $auth.mode "insecure") (eq (len $fields) 5) (eq (join " " (slice $fields 2)) "* * *") }}
{{- $interval := ternary 1 24 (hasPrefix "*" (index $fields 1)) }}
{{- $validities := dict }}
{{- if eq $auth.mode "generate" }}
{{- $_ := set $validities "auth.days" (mul 24 (int $auth.days)) }}
{{- end }}
{{- if ne $auth.tokenExpiry "never" }}
{{- $hours := dict "ms" 0 "s" (divf 1 3600) "m" (divf 1 60) "h" 1 "d" 24 | dig (regexFind "[a-z]+$" $auth.tokenExpiry) 0 }}
{{- $_ := set $validities "auth.tokenExpiry" (mulf (regexFind "^[0-9.]+" $auth.tokenExpiry) $hours) }}
{{- end }}
{{- range $key, $validity := $validities }}
{{- if le (float64 $validity) (float64 (mul 3 $interval)) }}
{{- fail (printf "%s is too short: keys are renewed in the last third of their validity, so it must exceed three times the %d h between two runs of auth.renewSchedule" $key (int $interval)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
