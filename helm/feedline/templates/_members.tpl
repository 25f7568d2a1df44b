{{/* The Job that removes surplus members before their pods are deleted: otherwise, the remaining coordinators could lose
the majority. Arguments: root, name, hook, and further flags of `feedline members sync`. */}}
{{- define "feedline.syncJob" -}}
{{- $root := .root -}}
apiVersion: batch/v1
kind: Job
metadata:
  {{- include "feedline.metadata" (list $root "members" (printf "%s-%s" (include "feedline.fullname" $root) .name)) | nindent 2 }}
  annotations:
    helm.sh/hook: {{ .hook }}
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
spec:
  backoffLimit: 3
  activeDeadlineSeconds: 240
  template:
    metadata:
      labels:
        {{- include "feedline.podLabels" (list $root "members") | nindent 8 }}
    spec:
      {{- $args := concat (list "members" "sync" (include "feedline.peers" $root)) .flags (list (printf "--log=%s" $root.Values.logs.format)) }}
      {{- include "feedline.commandPod" (dict
            "root" $root
            "account" (include "feedline.serviceAccount" (list $root "coordinator" $root.Values.coordinators))
            "callsApi" false
            "container" "members"
            "args" (toYaml $args)
            "env" (include "feedline.clientEnv" (list $root "admin"))
            "mounts" (include "feedline.keysMount" $root)
            "volumes" (include "feedline.keysVolume" (list $root "client" (list "admin.token")))) | nindent 6 }}
{{- end }}
