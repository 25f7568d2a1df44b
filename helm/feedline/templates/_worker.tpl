{{/* The pod of a worker, which the Deployment and the StatefulSet share. Argument: a list of the root and the pool. */}}

{{/* Selectors of a pool. Argument: a list of the root and the pool. */}}
{{- define "feedline.poolLabels" -}}
{{ include "feedline.selectorLabels" (list (index . 0) "worker") }}
feedline/pool: {{ (index . 1).name }}
{{- end }}

{{- define "feedline.workerTemplate" -}}
{{- $root := index . 0 -}}
{{- $pool := index . 1 -}}
metadata:
  labels:
    {{- include "feedline.podLabels" (list $root "worker") | nindent 4 }}
    feedline/pool: {{ $pool.name }}
    {{- with $pool.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $pool.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "feedline.serviceAccount" (list $root "worker" $pool) }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ add (int $pool.graceSeconds) 15 }}
  {{- if $pool.hostNetwork }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  securityContext:
    {{- include "feedline.podSecurityContext" $root | nindent 4 }}
  {{- include "feedline.pullSecrets" $root | indent 2 }}
  {{- include "feedline.scheduling" $pool | indent 2 }}
  {{- $labels := include "feedline.poolLabels" (list $root $pool) }}
  {{- $keys := ternary (list "pod-template-hash") list (eq $pool.kind "Deployment") }}
  {{- include "feedline.affinity" (dict "affinity" $pool.affinity "labels" $labels "keys" $keys) | nindent 2 }}
  topologySpreadConstraints:
    {{- if $pool.topologySpreadConstraints }}
    {{- toYaml $pool.topologySpreadConstraints | nindent 4 }}
    {{- else }}
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      {{- with $keys }}
      matchLabelKeys: {{ toJson . }}
      {{- end }}
      labelSelector:
        matchLabels:
          {{- $labels | nindent 10 }}
    {{- end }}
  {{- with $pool.initContainers }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: worker
      {{- include "feedline.container" $root | nindent 6 }}
      args:
        {{- include "feedline.workerArgs" . | nindent 8 }}
      {{- include "feedline.env" (list $root $pool) | nindent 6 }}
      ports:
        - {name: data, containerPort: 7071}
        - {name: metrics, containerPort: 7171}
        - {name: health, containerPort: 7181}
      {{- include "feedline.probes" $root | nindent 6 }}
      resources:
        requests:
          {{- merge (dict) ($pool.resources.requests | default dict) $pool.resources.limits | toYaml | nindent 10 }}
        limits:
          {{- toYaml $pool.resources.limits | nindent 10 }}
      volumeMounts:
        {{- include "feedline.commonMounts" $root | nindent 8 }}
        {{- if $pool.cache.enabled }}
        - {name: cache, mountPath: /var/cache/feedline}
        {{- end }}
        {{- with $pool.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with $pool.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "feedline.commonVolumes" $root | nindent 4 }}
    {{- include "feedline.keysVolume" (list $root "role" (list "worker.token")) | nindent 4 }}
    {{- if and $pool.cache.enabled (eq $pool.kind "Deployment") }}
    - name: cache
      {{- if eq $pool.cache.volume "ephemeral" }}
      ephemeral:
        volumeClaimTemplate:
          spec:
            {{- include "feedline.cacheClaim" $pool.cache | nindent 12 }}
      {{- else }}
      emptyDir: {sizeLimit: {{ include "feedline.quantity" $pool.cache.size | quote }}}
      {{- end }}
    {{- end }}
    {{- with $pool.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{- define "feedline.workerArgs" -}}
{{- $root := index . 0 -}}
{{- $pool := index . 1 -}}
- worker
- --coordinator={{ include "feedline.url" $root }}
- --listen={{ $root.Values.listenHost }}:7071
- --advertise-host=$(POD_IP)
- --memory={{ $pool.memory }}
{{- with $pool.graphMemory }}
- --graph-memory={{ . }}
{{- end }}
- --nic={{ default "0" $pool.nic }}
- --http={{ $root.Values.listenHost }}:7171
- --health={{ $root.Values.listenHost }}:7181
- --grace={{ $pool.graceSeconds }}s
- --log={{ $root.Values.logs.format }}
{{ include "feedline.roleTlsArgs" $root }}
{{- if include "feedline.isSecure" $root }}
- --tls-name={{ include "feedline.tlsName" $root }}
- --token-file=/etc/feedline/keys/worker.token
{{- end }}
{{- if ne $root.Values.autoscaling.mode "none" }}
- --pool={{ $pool.name }}
{{- end }}
{{- if $pool.cache.enabled }}
- --cache-dir=/var/cache/feedline
- --cache-disk={{ mulf 0.9 (include "feedline.bytes" $pool.cache.size | float64) | floor | int64 }}
{{- end }}
{{- if $pool.cacheStore.url }}
- --cache-store={{ $pool.cacheStore.url }}
- --cache-store-limit={{ $pool.cacheStore.limit }}
{{- end }}
{{- if ne (toString $pool.functions) "" }}
- --functions={{ ternary "on" "off" (has (toString $pool.functions) (list "on" "true")) }}
{{- end }}
{{- include "feedline.storeArgs" $root }}
{{- with $pool.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "feedline.cacheClaim" -}}
accessModes: [ReadWriteOnce]
{{- with .storageClass }}
storageClassName: {{ . | quote }}
{{- end }}
resources: {requests: {storage: {{ include "feedline.quantity" .size | quote }}}}
{{- end }}
