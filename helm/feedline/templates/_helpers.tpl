{{/* Names, labels and addresses. */}}

{{- define "feedline.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 32 | trimSuffix "-" }}
{{- end }}

{{/* Prefix of all names. It has at most 32 characters, because the name of a StatefulSet can have at most 52. */}}
{{- define "feedline.fullname" -}}
{{- $name := ternary .Release.Name (printf "%s-%s" .Release.Name (include "feedline.name" .)) (contains (include "feedline.name" .) .Release.Name) }}
{{- default $name .Values.fullnameOverride | trunc 32 | trimSuffix "-" }}
{{- end }}

{{- define "feedline.coordinator" -}}
{{ include "feedline.fullname" . }}-coordinator
{{- end }}

{{/* Selectors are immutable, so they contain only names. Argument: a list of the root and the component. */}}
{{- define "feedline.selectorLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "feedline.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "feedline.labels" -}}
{{- $root := index . 0 -}}
{{ include "feedline.selectorLabels" . }}
app.kubernetes.io/part-of: feedline
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels of pods. They do not contain the version, so that an upgrade of the chart alone restarts no pod. */}}
{{- define "feedline.podLabels" -}}
{{ include "feedline.selectorLabels" . }}
app.kubernetes.io/part-of: feedline
{{- with (index . 0).Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The metadata of an object. Argument: a list of the root, the component and the name. */}}
{{- define "feedline.metadata" -}}
{{- $root := index . 0 -}}
name: {{ index . 2 }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- include "feedline.labels" . | nindent 2 }}
{{- end }}

{{- define "feedline.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ default $.Chart.AppVersion .tag }}{{ end }}
{{- end }}
{{- end }}

{{- define "feedline.isSecure" -}}
{{- if ne .Values.auth.mode "insecure" }}true{{ end }}
{{- end }}

{{- define "feedline.scheme" -}}
{{ ternary "https" "http" (eq (include "feedline.isSecure" .) "true") }}
{{- end }}

{{/* The name in the certificate of every role: that of the Service. */}}
{{- define "feedline.tlsName" -}}
{{ include "feedline.fullname" . }}.{{ .Release.Namespace }}.svc
{{- end }}

{{- define "feedline.url" -}}
{{ include "feedline.scheme" . }}://{{ include "feedline.tlsName" . }}:7070
{{- end }}

{{/* The URL of the coordinator with an ordinal, or with a variable in place of its pod's name. */}}
{{- define "feedline.coordinatorUrl" -}}
{{- $root := index . 0 -}}
{{ include "feedline.scheme" $root }}://{{ index . 1 }}.{{ include "feedline.coordinator" $root }}.{{ $root.Release.Namespace }}.svc:7070
{{- end }}

{{/* The URLs of all coordinators: the same text for each of them. */}}
{{- define "feedline.peers" -}}
{{- $urls := list }}
{{- range $ordinal := until (int .Values.coordinators.replicas) }}
{{- $urls = append $urls (include "feedline.coordinatorUrl" (list $ (printf "%s-%d" (include "feedline.coordinator" $) $ordinal))) }}
{{- end }}
{{- join "," $urls }}
{{- end }}

{{/* Names in the certificate of the roles, as YAML. Five coordinators are included, so that growing needs no new certificate. */}}
{{- define "feedline.hosts" -}}
{{- $service := include "feedline.tlsName" . }}
{{- $hosts := list $service (include "feedline.fullname" .) (printf "%s.%s" (include "feedline.fullname" .) .Release.Namespace) (printf "%s.%s" $service .Values.clusterDomain) }}
{{- range $ordinal := until 5 }}
{{- $hosts = append $hosts (printf "%s-%d.%s.%s.svc" (include "feedline.coordinator" $) $ordinal (include "feedline.coordinator" $) $.Release.Namespace) }}
{{- end }}
{{- concat $hosts .Values.auth.extraHosts | toYaml }}
{{- end }}

{{/* Names of Secrets. The hook writes the first two, and cert-manager the others. No pod mounts the key of the CA. */}}
{{- define "feedline.keysSecret" -}}
{{ default (printf "%s-keys" (include "feedline.fullname" .)) (ternary .Values.auth.existingSecret "" (eq .Values.auth.mode "existingSecret")) }}
{{- end }}
{{- define "feedline.authoritySecret" -}}
{{ include "feedline.fullname" . }}-ca
{{- end }}
{{- define "feedline.roleSecret" -}}
{{ include "feedline.fullname" . }}-role-tls
{{- end }}
{{- define "feedline.clientSecret" -}}
{{ include "feedline.fullname" . }}-client-tls
{{- end }}

{{/* Whether a hook creates keys, and whether it creates certificates too. */}}
{{- define "feedline.createsKeys" -}}
{{- if has .Values.auth.mode (list "generate" "certManager") }}true{{ end }}
{{- end }}

{{- define "feedline.serviceAccount" -}}
{{- $root := index . 0 -}}
{{- $role := index . 2 -}}
{{ default (printf "%s-%s" (include "feedline.fullname" $root) (index . 1)) $role.serviceAccount.name }}
{{- end }}

{{/* Whether the coordinators call the API of Kubernetes. */}}
{{- define "feedline.callsApi" -}}
{{- if eq .Values.autoscaling.mode "builtin" }}true{{ end }}
{{- end }}

{{/* A size of storage as Kubernetes reads it. Helm would write a large number of bytes as 1e+11. */}}
{{- define "feedline.quantity" -}}
{{ kindIs "string" . | ternary . (int64 .) }}
{{- end }}

{{/* Converts a quantity of Kubernetes, such as 1.5Gi, 500M or 1e9, to bytes. */}}
{{- define "feedline.bytes" -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 }}
{{- $unit := regexFind "[A-Za-z]*$" (toString .) }}
{{- mulf (trimSuffix $unit (toString .) | float64) (get $units $unit | float64) | floor | int64 }}
{{- end }}

{{/* The pools of workers with the values of `workers` as defaults, as a JSON array. */}}
{{- define "feedline.pools" -}}
{{- $pools := list }}
{{- range .Values.workers.pools }}
{{- $name := ternary (printf "%s-worker" (include "feedline.fullname" $)) (printf "%s-worker-%s" (include "feedline.fullname" $) .name) (eq .name "default") }}
{{- $pool := deepCopy (omit $.Values.workers "pools") | merge (dict "fullname" $name) }}
{{- /* `mergeOverwrite` would ignore false and empty values of a pool. */}}
{{- range $key, $value := . }}
{{- if and (kindIs "map" $value) (kindIs "map" (get $pool $key)) }}
{{- range $inner, $innerValue := $value }}
{{- $_ := set (get $pool $key) $inner $innerValue }}
{{- end }}
{{- else }}
{{- $_ := set $pool $key $value }}
{{- end }}
{{- end }}
{{- $pools = append $pools $pool }}
{{- end }}
{{- toJson $pools }}
{{- end }}
