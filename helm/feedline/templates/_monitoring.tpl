{{/* Parts of the objects of the prometheus-operator. */}}

{{/* The metadata, with the labels by which a Prometheus object selects. Argument: a list of the root, component and name. */}}
{{- define "feedline.monitorMetadata" -}}
{{ include "feedline.metadata" . }}
{{- with (index . 0).Values.monitoring.additionalLabels }}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "feedline.endpoint" -}}
- port: metrics
  interval: {{ .Values.monitoring.interval }}
  scheme: {{ include "feedline.scheme" . }}
  {{- if include "feedline.isSecure" . }}
  {{- $isCertManager := eq .Values.auth.mode "certManager" }}
  {{- $secret := include (ternary "feedline.clientSecret" "feedline.keysSecret" $isCertManager) . }}
  tlsConfig:
    serverName: {{ include "feedline.tlsName" . }}
    ca: {secret: {name: {{ $secret }}, key: {{ ternary "ca.crt" "ca.pem" $isCertManager }}}}
    cert: {secret: {name: {{ $secret }}, key: {{ ternary "tls.crt" "client.pem" $isCertManager }}}}
    keySecret: {name: {{ $secret }}, key: {{ ternary "tls.key" "client-key.pem" $isCertManager }}}
  authorization:
    credentials: {name: {{ include "feedline.keysSecret" . }}, key: client.token}
  {{- end }}
  relabelings:
    # The rules and dashboards distinguish clusters by namespace and release.
    - {sourceLabels: [__meta_kubernetes_pod_label_app_kubernetes_io_instance], targetLabel: release}
    {{- with .Values.monitoring.relabelings }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.monitoring.metricRelabelings }}
  metricRelabelings:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{- define "feedline.monitorSelector" -}}
selector:
  matchLabels:
    app.kubernetes.io/name: {{ include "feedline.name" . }}
    app.kubernetes.io/instance: {{ .Release.Name }}
  matchExpressions:
    - {key: app.kubernetes.io/component, operator: In, values: [coordinator, worker]}
{{- end }}
