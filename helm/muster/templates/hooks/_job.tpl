{{/* Pod fields that the chart's jobs share. arguments: root, account; tolerations: besides those of the values */}}
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
{{- with concat (.tolerations | default list) ($own.tolerations | default list) }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: {runAsNonRoot: true, runAsUser: {{ $own.runAsUser }}, runAsGroup: {{ $own.runAsUser }}, fsGroup: {{ $own.runAsUser }}}
{{- end -}}
{{- define "muster.jobLabels" -}}
app: muster-{{ .part }}
{{- end -}}
{{- define "muster.hook" -}}
helm.sh/hook: {{ .when }}
helm.sh/hook-weight: {{ .weight | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
