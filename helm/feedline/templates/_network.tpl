{{/* Parts of the network policies of both roles. */}}

{{- define "feedline.policyTypes" -}}
policyTypes:
  - Ingress
  {{- if .Values.networkPolicy.egress.enabled }}
  - Egress
  {{- end }}
{{- end }}

{{/* Pods of this release. */}}
{{- define "feedline.releasePods" -}}
- podSelector:
    matchLabels:
      app.kubernetes.io/name: {{ include "feedline.name" . }}
      app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The given selectors, or everything that the named selector can select. Argument: a list of both. */}}
{{- define "feedline.peerSelectors" -}}
{{- if index . 0 }}
{{- toYaml (index . 0) }}
{{- else -}}
- {{ index . 1 }}: {}
{{- end }}
{{- end }}

{{/* Trainers: the given selectors, or the pods of the namespaces that may have keys of clients. */}}
{{- define "feedline.trainerSelectors" -}}
{{- if .Values.networkPolicy.clients }}
{{- toYaml .Values.networkPolicy.clients }}
{{- else -}}
- podSelector: {}
{{- with .Values.clients.namespaces }}
- namespaceSelector:
    matchExpressions:
      - {key: kubernetes.io/metadata.name, operator: In, values: [{{ join ", " . }}]}
{{- end }}
{{- end }}
{{- end }}

{{/* Metrics from the monitoring system, and probes from anywhere, since the addresses of nodes are not known. */}}
{{- define "feedline.commonIngress" -}}
- ports: [{port: metrics}]
  from:
    {{- include "feedline.peerSelectors" (list .Values.networkPolicy.monitoring "namespaceSelector") | nindent 4 }}
- ports: [{port: health}]
{{- end }}

{{- define "feedline.egress" -}}
{{- if .Values.networkPolicy.egress.enabled -}}
egress:
  - ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
  - ports: [{port: 443}{{ if include "feedline.callsApi" . }}, {port: 6443}{{ end }}]
  - to:
      {{- include "feedline.releasePods" . | nindent 6 }}
  {{- with .Values.networkPolicy.egress.extraRules }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}
