{{/* A container of a test. Argument: a list of the root, the name and the arguments as YAML. */}}
{{- define "feedline.testContainer" -}}
{{- $root := index . 0 -}}
- name: {{ index . 1 }}
  {{- include "feedline.container" $root | nindent 2 }}
  args:
    {{- index . 2 | nindent 4 }}
  {{- include "feedline.clientEnv" (list $root "client") | nindent 2 }}
  resources: {requests: {cpu: 50m, memory: 64Mi}, limits: {memory: 512Mi}}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
    {{- include "feedline.keysMount" $root | nindent 4 }}
    {{- if $root.Values.tests.pipeline }}
    - {name: pipeline, mountPath: /etc/feedline/pipeline, readOnly: true}
    {{- end }}
{{- end }}
