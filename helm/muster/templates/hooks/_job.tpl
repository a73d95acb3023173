{{/* Pod fields that the chart's jobs share. arguments: root, account */}}
{{- define "muster.jobPod" -}}
{{- $own := .root.Values.admissionWebhooks.patch -}}
serviceAccountName: {{ .account | quote }}
automountServiceAccountToken: false
enableServiceLinks: false
restartPolicy: Never
{{- with $own.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $own.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
tolerations: {{- concat (include "muster.ourTaints" (dict "keys" (list "faulty" "startup")) | fromJsonArray) ($own.tolerations | default list) | toYaml | nindent 2 }}
securityContext: {runAsNonRoot: true, runAsUser: {{ $own.runAsUser }}, runAsGroup: {{ $own.runAsUser }}, fsGroup: {{ $own.runAsUser }}}
{{- end -}}
{{/* Containers that run one after the other, each with a volume tmp. arguments: root; steps: name, command and args of
each; own: the component's image, if it can have a different one */}}
{{- define "muster.jobSteps" -}}
{{- range $number, $step := .steps -}}
{{- if eq (add1 $number) (len $.steps | int64) }}
containers:
{{- else if eq $number 0 }}
initContainers:
{{- end }}
  - name: {{ $step.name }}
    {{- include "muster.image" (dict "root" $.root "own" $.own) | nindent 4 }}
    command: [{{ $step.command }}]
    args: {{ toJson $step.args }}
    resources: {requests: {cpu: 50m, memory: 64Mi}, limits: {memory: 512Mi}}
    securityContext: {{- include "muster.noRights" $.root | nindent 6 }}
    volumeMounts:
      {{- include "muster.tokenMounts" dict | nindent 6 }}
      - {name: tmp, mountPath: /tmp}
{{- end }}
{{- end -}}
{{- define "muster.jobLabels" -}}
app: muster-{{ .part }}
{{- end -}}
{{- define "muster.hook" -}}
helm.sh/hook: {{ .when }}
helm.sh/hook-weight: {{ .weight | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
