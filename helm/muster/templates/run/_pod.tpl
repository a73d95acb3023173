{{/* The pod of `muster run`. It is not retried: a heavy check would run again, and the next result would hide the first.
arguments: root, account, args */}}
{{- define "muster.runPod" -}}
{{- $hasRights := ne .account "default" -}}
{{- include "muster.jobPod" . }}
{{- include "muster.pullSecrets" . }}
containers:
  - name: run
    {{- include "muster.image" . | nindent 4 }}
    command: [muster]
    args: {{ toJson (prepend .args "run") }}
    terminationMessagePolicy: FallbackToLogsOnError
    resources: {requests: {cpu: 50m, memory: 64Mi}, limits: {memory: 512Mi}}
    securityContext: {{- include "muster.noRights" .root | nindent 6 }}
    {{- if $hasRights }}
    volumeMounts: {{- include "muster.tokenMounts" dict | nindent 6 }}
volumes: {{- include "muster.tokens" dict | nindent 2 }}
    {{- end }}
{{- end -}}

{{/* Without an account of its own, the pod has no token and queries the agents as any pod may. */}}
{{- define "muster.runUrl" -}}
--url=http://autopilot-healthchecks.{{ include "muster.nodes" . }}.svc:3333
{{- end -}}
