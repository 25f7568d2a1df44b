{{/* Autoscaling: the pools and their bounds, as the coordinators receive them. */}}

{{- define "feedline.scalingArgs" -}}
{{- if ne .Values.autoscaling.mode "none" }}
{{- range include "feedline.pools" . | fromJsonArray }}
- --scale-pool={{ .name }}={{ lower $.Values.workers.kind }}/{{ .fullname }}:{{ int .min }}..{{ int .max }}
{{- end }}
- --shrink-after={{ .Values.autoscaling.shrinkAfter }}
{{- if eq .Values.autoscaling.mode "builtin" }}
- --scaler=kubernetes
- --scale-victims={{ .Values.autoscaling.victimChoice }}
{{- else }}
- --scaler=keda
- --scaler-listen={{ .Values.listenHost }}:7072
{{- end }}
{{- end }}
{{- end }}
