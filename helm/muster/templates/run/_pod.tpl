{{/* The pod of `muster run`. It is not retried: a heavy check would run again, and the next result would hide the first.
It prefers nodes that are not faulty.
arguments: root, account, hasToken, args */}}
{{- define "muster.runPod" -}}
{{- include "muster.jobPod" . }}
affinity:
  nodeAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        preference: {matchExpressions: [{key: muster.dev/faulty, operator: DoesNotExist}]}
{{- include "muster.pullSecrets" . }}
containers:
  - name: run
    {{- include "muster.image" . | nindent 4 }}
    command: [muster]
    args: {{ toJson (prepend .args "run") }}
    terminationMessagePolicy: FallbackToLogsOnError
    resources: {requests: {cpu: 50m, memory: 64Mi}, limits: {memory: 512Mi}}
    securityContext: {{- include "muster.noRights" .root | nindent 6 }}
    {{- if .hasToken }}
    volumeMounts: {{- include "muster.tokenMounts" dict | nindent 6 }}
volumes: {{- include "muster.tokens" dict | nindent 2 }}
    {{- end }}
{{- end -}}

{{/* Without a token, the pod queries the agents as any pod may. */}}
{{- define "muster.runUrl" -}}
--url=http://autopilot-healthchecks.{{ include "muster.nodes" . }}.svc:3333
{{- end -}}
