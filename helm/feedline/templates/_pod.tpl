{{/* Parts of pods: security, volumes with keys, probes and scheduling. */}}

{{- define "feedline.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "feedline.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Image and security of a container. */}}
{{- define "feedline.container" -}}
image: {{ include "feedline.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  {{- include "feedline.securityContext" . | nindent 2 }}
{{- end }}

{{- define "feedline.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Variables of a role. Argument: a list of the root and the values of the role. */}}
{{- define "feedline.env" -}}
{{- $root := index . 0 -}}
{{- $role := index . 1 -}}
env:
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  - name: POD_NAMESPACE
    valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
  - name: POD_IP
    valueFrom: {fieldRef: {fieldPath: status.podIP}}
  {{- with $root.Values.logs.filter }}
  - name: FEEDLINE_LOG
    value: {{ . | quote }}
  {{- end }}
  {{- with $role.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $role.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Flags for TLS of a role. */}}
{{- define "feedline.roleTlsArgs" -}}
{{- if include "feedline.isSecure" . -}}
- --tls-ca=/etc/feedline/keys/ca.pem
- --tls-cert=/etc/feedline/keys/role.pem
- --tls-key=/etc/feedline/keys/role-key.pem
{{- else -}}
- --insecure
{{- end }}
{{- end }}

{{/* Flags that restrict the access of pipelines to data. */}}
{{- define "feedline.storeArgs" -}}
{{- range .Values.stores.allowUrls }}
- --allow-url={{ . }}
{{- end }}
{{- if .Values.stores.allowMetadataAddresses }}
- --allow-metadata-addresses
{{- end }}
{{- if .Values.stores.credentialsSecret.name }}
- --credentials=/etc/feedline/credentials/{{ .Values.stores.credentialsSecret.key }}
{{- end }}
{{- end }}

{{/* Flags and variables of a command that calls the cluster with a token. Argument: a list of the root and the token's name. */}}
{{- define "feedline.clientEnv" -}}
{{- $root := index . 0 -}}
env:
  - name: FEEDLINE_COORDINATOR
    value: {{ include "feedline.url" $root }}
  {{- if include "feedline.isSecure" $root }}
  - name: FEEDLINE_TLS_CA
    value: /etc/feedline/keys/ca.pem
  - name: FEEDLINE_TLS_CERT
    value: /etc/feedline/keys/client.pem
  - name: FEEDLINE_TLS_KEY
    value: /etc/feedline/keys/client-key.pem
  - name: FEEDLINE_TOKEN_FILE
    value: /etc/feedline/keys/{{ index . 1 }}.token
  {{- end }}
{{- end }}

{{/* The volume `keys` with a certificate and further files. Argument: a list of the root, `role` or `client`, and the files. */}}
{{- define "feedline.keysVolume" -}}
{{- $root := index . 0 -}}
{{- $holder := index . 1 -}}
{{- if include "feedline.isSecure" $root -}}
- name: keys
  projected:
    defaultMode: 0440
    sources:
      {{- if eq $root.Values.auth.mode "certManager" }}
      - secret:
          name: {{ include (printf "feedline.%sSecret" $holder) $root }}
          items:
            - {key: ca.crt, path: ca.pem}
            - {key: tls.crt, path: {{ $holder }}.pem}
            - {key: tls.key, path: {{ $holder }}-key.pem}
      {{- end }}
      - secret:
          name: {{ include "feedline.keysSecret" $root }}
          items:
            {{- if ne $root.Values.auth.mode "certManager" }}
            - {key: ca.pem, path: ca.pem}
            - {key: {{ $holder }}.pem, path: {{ $holder }}.pem}
            - {key: {{ $holder }}-key.pem, path: {{ $holder }}-key.pem}
            {{- end }}
            {{- range index . 2 }}
            - {key: {{ . }}, path: {{ . }}}
            {{- end }}
{{- end }}
{{- end }}

{{- define "feedline.keysMount" -}}
{{- if include "feedline.isSecure" . -}}
- {name: keys, mountPath: /etc/feedline/keys, readOnly: true}
{{- end }}
{{- end }}

{{/* Volumes that both roles have. */}}
{{- define "feedline.commonVolumes" -}}
- name: tmp
  emptyDir: {}
{{- with .Values.stores.credentialsSecret }}
{{- if .name }}
- name: credentials
  secret: {secretName: {{ .name }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- end }}

{{- define "feedline.commonMounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if .Values.stores.credentialsSecret.name }}
- {name: credentials, mountPath: /etc/feedline/credentials, readOnly: true}
{{- end }}
{{- with include "feedline.keysMount" . }}
{{ . }}
{{- end }}
{{- end }}

{{/* Liveness does not depend on a leader: otherwise, the loss of a majority would restart all coordinators. */}}
{{- define "feedline.probes" -}}
startupProbe:
  httpGet: {path: /startupz, port: health}
  periodSeconds: 2
  failureThreshold: 60
readinessProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 2
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}

{{/* Settings of a role for the scheduler and the node. */}}
{{- define "feedline.scheduling" -}}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "dnsConfig" }}
{{- with index $ $key }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- range $key := list "priorityClassName" "runtimeClassName" }}
{{- with index $ $key }}
{{ $key }}: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* The default affinity: zones with fewer pods of the role. This is no spread constraint, because on nodes without the label
of a zone, the scheduler would ignore all preferred spread constraints of the pod. Argument: a dict with affinity, labels and keys. */}}
{{- define "feedline.affinity" -}}
{{- if not .affinity -}}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: topology.kubernetes.io/zone
          {{- with .keys }}
          matchLabelKeys: {{ toJson . }}
          {{- end }}
          labelSelector:
            matchLabels:
              {{- .labels | nindent 14 }}
{{- end }}
{{- end }}

{{/* A pod that runs one command of feedline and ends. Argument: a dict with root, account, container, env, args and volumes. */}}
{{- define "feedline.commandPod" -}}
{{- $root := .root -}}
restartPolicy: OnFailure
serviceAccountName: {{ .account }}
automountServiceAccountToken: {{ .callsApi }}
enableServiceLinks: false
{{- include "feedline.pullSecrets" $root }}
securityContext:
  {{- include "feedline.podSecurityContext" $root | nindent 2 }}
containers:
  - name: {{ .container }}
    {{- include "feedline.container" $root | nindent 4 }}
    args:
      {{- .args | nindent 6 }}
    {{- with .env }}
    {{- . | nindent 4 }}
    {{- end }}
    resources: {requests: {cpu: 50m, memory: 64Mi}, limits: {memory: 256Mi}}
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
      {{- with .mounts }}
      {{- . | nindent 6 }}
      {{- end }}
volumes:
  - name: tmp
    emptyDir: {}
  {{- with .volumes }}
  {{- . | nindent 2 }}
  {{- end }}
{{- end }}
