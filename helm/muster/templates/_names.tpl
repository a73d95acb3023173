{{/* Names. Agent and tainter have fixed names, because a cluster has one of each. The names of the IPU components have the
prefix that the IPU Operator's guide uses. */}}
{{- define "muster.prefix" -}}
{{- $name := .Values.fullNameOverride | default (printf "%s-%s" .Release.Name (.Values.nameOverride | default "ipu-operator")) -}}
{{- $name = $name | replace "." "-" | trunc 36 | trimSuffix "-" -}}
{{- if not (regexMatch "^[a-z]" $name) -}}
{{- fail (printf "\n\nthe name of a Service must begin with a letter, and %q does not: add, for example, --set fullNameOverride=ipu-operator\n" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}
{{- define "muster.controller" -}}{{ include "muster.prefix" . }}-controller-manager{{- end -}}
{{- define "muster.proxy" -}}{{ include "muster.prefix" . }}-vipu-proxy{{- end -}}
{{- define "muster.extender" -}}{{ include "muster.prefix" . }}-extender{{- end -}}
{{- define "muster.webhook" -}}{{ include "muster.prefix" . }}-webhook{{- end -}}
{{- define "muster.metricsReader" -}}{{ .Values.fullNameOverride | default .Release.Name }}-metrics-reader{{- end -}}
{{- define "muster.nodes" -}}{{ .Values.namespace.name }}{{- end -}}

{{/* arguments: root, part */}}
{{- define "muster.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: muster
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}
{{/* Pod selector of a component. Immutable, so upgrades must not change it. arguments: root, part */}}
{{- define "muster.selector" -}}
app: muster-{{ .part }}
{{- if has .part (list "operator" "vipu-proxy") }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
{{- end }}
{{- end -}}

{{- define "muster.controllerAccount" -}}
{{- $old := .Values.controllers.serviceAccount | default dict -}}{{- $own := .Values.controller.serviceAccount -}}
{{- $name := $own.name | default $old.name -}}
{{- if eq (include "muster.controllerAccountMade" .) "true" }}{{ $name | default (include "muster.controller" .) }}{{ else }}{{ $name | default "default" }}{{ end -}}
{{- end -}}
{{- define "muster.controllerAccountMade" -}}
{{- and .Values.controller.serviceAccount.create (ne (toString (.Values.controllers.serviceAccount | default dict).create) "false") -}}
{{- end -}}
{{- define "muster.proxyAccount" -}}
{{- if .Values.vipuProxy.serviceAccount.create }}{{ .Values.vipuProxy.serviceAccount.name | default (include "muster.proxy" .) }}{{ else }}{{ .Values.vipuProxy.serviceAccount.name | default "default" }}{{ end -}}
{{- end -}}

{{/* The image and its pull policy, from the component's values or from `image`. arguments: root, own */}}
{{- define "muster.image" -}}
{{- $all := .root.Values.image -}}{{- $own := .own | default dict -}}
{{- $tag := $own.tag | default (ternary "" $all.tag (ne ($own.repository | default "") "")) | default .root.Chart.AppVersion -}}
image: {{ printf "%s:%s" ($own.repository | default $all.repository) $tag | quote }}
imagePullPolicy: {{ $own.pullPolicy | default $all.pullPolicy }}
{{- end -}}

{{/* Content of the pull secret, base64-encoded; empty if the chart does not create the Secret. */}}
{{- define "muster.pullSecretData" -}}
{{- $own := .Values.pullSecrets -}}
{{- if and $own.create $own.imagePullSecretData -}}
{{- $isEncoded := regexMatch "^[A-Za-z0-9+/\\s]+=*\\s*$" $own.imagePullSecretData -}}
{{- ternary ($own.imagePullSecretData | nospace) (b64enc $own.imagePullSecretData) $isEncoded -}}
{{- end -}}
{{- end -}}
{{/* Pull secrets. arguments: root; own: the component's image, if it can have a different one; as: another name of our
Secret */}}
{{- define "muster.pullSecrets" -}}
{{- $names := list -}}
{{- $given := .root.Values.global.imagePullSecrets -}}
{{- range (ternary (list $given) $given (kindIs "map" $given)) -}}
{{- $name := kindIs "map" . | ternary (get (kindIs "map" . | ternary . dict) "name") . -}}
{{- if $name }}{{ $names = append $names $name }}{{ end -}}
{{- end -}}
{{- $own := .root.Values.pullSecrets -}}
{{- if and (or (not $own.create) $own.imagePullSecretData) (not (.own | default dict).repository) -}}
{{- $names = append $names (.as | default $own.name) -}}
{{- end -}}
{{- with $names | uniq }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "muster.serviceType" -}}{{ . | default "ClusterIP" | replace "clusterIP" "ClusterIP" }}{{- end -}}

{{/* Security context of an unprivileged container. */}}
{{- define "muster.noRights" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* The account's token for the API server, bound to the pod and rotated by the kubelet; with an audience, a second token
for that audience. arguments: audience */}}
{{- define "muster.tokens" -}}
- name: api-access
  projected:
    defaultMode: 292
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3607}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}}]}
{{- with .audience }}
- name: muster-token
  projected:
    defaultMode: 292
    sources:
      - serviceAccountToken: {path: token, audience: {{ . }}, expirationSeconds: 3600}
{{- end }}
{{- end -}}
{{- define "muster.tokenMounts" -}}
- {name: api-access, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- if .audience }}
- {name: muster-token, mountPath: /var/run/secrets/muster.dev, readOnly: true}
{{- end }}
{{- end -}}
{{/* Prefer a different node for each replica. */}}
{{- define "muster.spread" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- include "muster.selector" . | nindent 12 }}
{{- end -}}

{{/* Tolerations of Muster's own taints, as JSON: a pod without them cannot start where every node has such a taint.
arguments: keys, after muster.dev/ */}}
{{- define "muster.ourTaints" -}}
{{- $tolerations := list -}}
{{- range .keys }}{{ $tolerations = append $tolerations (dict "key" (printf "muster.dev/%s" .) "operator" "Exists") }}{{ end -}}
{{- toJson $tolerations -}}
{{- end -}}

{{/* Whether the cluster has at least this minor version. arguments: root, minor */}}
{{- define "muster.since" -}}
{{- if semverCompare (printf ">=1.%d.0-0" (int .minor)) .root.Capabilities.KubeVersion.Version }}true{{ end -}}
{{- end -}}
{{/*
Whether the rule for Muster's keys of Nodes is a mutating webhook (which changes nothing): API servers before 1.20.6
overwrite the old Node with the new one before they call validating webhooks (CVE-2021-25735). Later ones need no right
to patch such a configuration, with which a stolen account could change every write.
*/}}
{{- define "muster.nodeKeysMutating" -}}
{{- if and (eq (include "muster.nodeKeys" .) "webhook") (semverCompare "<1.20.6-0" .Capabilities.KubeVersion.Version) }}true{{ end -}}
{{- end }}

{{/* policy, webhook or none */}}
{{- define "muster.nodeKeys" -}}
{{- $mode := .Values.nodeKeys.mode -}}
{{- if not .Values.tainter.enabled }}none
{{- else if eq $mode "auto" }}{{ ternary "policy" "webhook" (eq (include "muster.since" (dict "root" . "minor" 30)) "true") }}
{{- else if and (eq $mode "policy") (not (include "muster.since" (dict "root" . "minor" 30))) -}}
{{- fail (printf "\n\nnodeKeys.mode: policy needs Kubernetes 1.30 or later, and this is %s: use webhook or auto\n" .Capabilities.KubeVersion.Version) -}}
{{- else }}{{ $mode }}{{ end -}}
{{- end -}}
{{/* Whether the tainter serves a webhook. */}}
{{- define "muster.tainterWebhook" -}}
{{- if and .Values.tainter.enabled (has "webhook" (list (include "muster.ownNode" .) (include "muster.nodeKeys" .))) }}true{{ end -}}
{{- end -}}
{{/* policy, webhook or none */}}
{{- define "muster.ownNode" -}}
{{- $mode := .Values.ownNode.mode -}}
{{- if not .Values.agent.enabled }}none
{{- else if eq $mode "auto" -}}
{{- if include "muster.since" (dict "root" . "minor" 30) }}policy
{{- else if .Values.tainter.enabled }}webhook{{ else }}none{{ end -}}
{{- else if and (eq $mode "webhook") (not .Values.tainter.enabled) }}none
{{- else if and (eq $mode "policy") (not (include "muster.since" (dict "root" . "minor" 30))) -}}
{{- fail (printf "\n\nownNode.mode: policy needs Kubernetes 1.30 or later, and this is %s: use webhook or auto\n" .Capabilities.KubeVersion.Version) -}}
{{- else }}{{ $mode }}{{ end -}}
{{- end -}}
