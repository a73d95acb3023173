{{/* The chart 1.0.0-alpha-5 had these values at the top level; those under vipuProxy take precedence. */}}
{{- define "muster.proxyPort" -}}
{{- $own := int .Values.vipuProxy.proxyPort -}}{{- $old := int .Values.proxyPort -}}
{{- ternary $old $own (and (eq $own 8080) (gt $old 0)) -}}
{{- end -}}
{{- define "muster.proxyServicePort" -}}
{{- $own := int .Values.vipuProxy.service.port -}}{{- $old := int .Values.service.port -}}
{{- ternary $old $own (and (eq $own 80) (gt $old 0)) -}}
{{- end -}}
{{- define "muster.proxyServiceType" -}}
{{- $own := include "muster.serviceType" .Values.vipuProxy.service.type -}}
{{- ternary (include "muster.serviceType" .Values.service.type) $own (eq $own "ClusterIP") -}}
{{- end -}}

{{- define "muster.scope" -}}
{{- $names := list -}}
{{- range splitList "," .Values.admissionWebhooks.scope }}{{ if trim . }}{{ $names = append $names (trim .) }}{{ end }}{{ end -}}
{{- range $names -}}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$" .) -}}
{{- fail (printf "\n\nadmissionWebhooks.scope: %q: expected namespace names, separated by commas (\\, in --set)\n" .) -}}
{{- end -}}
{{- end -}}
{{- $names | uniq | sortAlpha | toJson -}}
{{- end -}}

{{- define "muster.kubectlVersion" -}}
{{- $given := .Values.global.kubectlVersion -}}
{{- if kindIs "string" $given }}{{ $given }}{{ else if $given }}{{ first $given }}{{ end -}}
{{- end -}}

{{- define "muster.dnsPolicy" -}}
{{- $own := .Values.controller -}}
{{- ternary "ClusterFirst" $own.dnsPolicy (and (not $own.hostNetwork) (eq $own.dnsPolicy "ClusterFirstWithHostNet")) -}}
{{- end -}}

{{/* The operator's metrics port in its pod: the port of the Service, unless the pod uses that port for something else. */}}
{{- define "muster.metricsPort" -}}
{{- $health := 8081 -}}
{{- $webhook := int .Values.admissionWebhooks.port -}}
{{- if eq $webhook $health }}{{ fail "\n\nadmissionWebhooks.port: 8081 is the operator's health port: choose another port\n" }}{{ end -}}
{{- $free := list -}}
{{- range list (int .Values.controller.service.port) 8443 8444 }}{{ if not (or (lt . 1024) (eq . $health) (eq . $webhook)) }}{{ $free = append $free . }}{{ end }}{{ end -}}
{{- first $free -}}
{{- end -}}

{{/* Image of the launchers' init containers: global.launcherImage, by default the operator's image. */}}
{{- define "muster.launcher" -}}
{{- $own := include "muster.image" (dict "root" . "own" .Values.controller.image) | fromYaml -}}
{{- $named := .Values.global.launcherImage -}}
image: {{ $named | default $own.image | quote }}
imagePullPolicy: {{ .Values.global.launcherImagePullPolicy | default (ternary $own.imagePullPolicy "Never" (empty $named)) }}
{{- end -}}

{{/* labels, resources or none */}}
{{- define "muster.ipuVisibility" -}}
{{- $own := .Values.ipuVisibility -}}
{{- if .Values.controller.enabled }}{{ $own.advertise | default (ternary "labels" "none" $own.advertiseOnMaster) }}{{ else }}none{{ end -}}
{{- end -}}

{{/* When a job removes the numbers of IPUs: at an uninstall, and after an upgrade to another form than the installed
release writes. A list of helm's events, as JSON. */}}
{{- define "muster.ipuRemovals" -}}
{{- $form := include "muster.ipuVisibility" . }}
{{- $events := list }}
{{- if and .Values.uninstall.release (ne $form "none") }}{{ $events = append $events "pre-delete" }}{{ end }}
{{- range $old := list "labels" "resources" }}
{{- if and (ne $old $form) (lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" (printf "%s-ipu-%s" (include "muster.controller" $) $old)) }}{{ $events = append $events "post-upgrade" | uniq }}{{ end }}
{{- end }}
{{- toJson $events -}}
{{- end -}}
{{/* The account of that job. arguments: root, event */}}
{{- define "muster.ipuRemover" -}}{{ include "muster.prefix" .root }}-ipus-{{ .event }}{{- end -}}

{{/* Port of the scheduler's extension; empty: it is not enabled. */}}
{{- define "muster.extenderPort" -}}
{{- if and .Values.controller.enabled .Values.extendedScheduler.enabled -}}
{{- $port := int .Values.extendedScheduler.port -}}
{{- if has $port (list 8081 (int .Values.admissionWebhooks.port) (include "muster.metricsPort" . | int)) -}}
{{- fail (printf "\n\nextendedScheduler.port: the operator uses %d already: choose another port\n" $port) -}}
{{- end -}}
{{- $port -}}
{{- end -}}
{{- end -}}

{{- define "muster.operatorSettings" -}}
{{- if not .Values.vipuProxy.enabled }}{{ fail "\n\ncontroller.enabled: the operator needs the V-IPU proxy: set vipuProxy.enabled=true, or also set controller.enabled=false\n" }}{{ end -}}
{{- $own := .Values.controller -}}{{- $hooks := .Values.admissionWebhooks -}}{{- $jobs := .Values.ipuJobs -}}
{{- $launcher := include "muster.launcher" . | fromYaml -}}
{{- $settings := dict
  "vipu_proxy" (printf "http://%s.%s.svc:%s" (include "muster.proxy" .) .Release.Namespace (include "muster.proxyServicePort" .))
  "proxy_token" "/var/run/secrets/muster.dev/token"
  "tracker" .Values.vipuProxy.proxyPartitionTrackerConfigMap
  "quarantine_namespace" (include "muster.quarantineNamespace" .)
  "namespace" .Release.Namespace
  "scope" (include "muster.scope" . | fromJsonArray)
  "metrics_port" (int (include "muster.metricsPort" .))
  "webhook_port" (int $hooks.port)
  "webhook_name" (include "muster.webhook" .)
  "launcher_image" $launcher.image
  "launcher_image_pull_policy" $launcher.imagePullPolicy
  "kubectl_version" (include "muster.kubectlVersion" .)
  "host_network" $jobs.hostNetwork
  "privileged" $jobs.privileged
  "allow_in_templates" ($jobs.allow | default list)
  "dns_policy" $jobs.dnsPolicy
  "btl_tcp_if_include" $jobs.btlTcpIfInclude
  "ipu_pods" .Values.ipuPods.enabled
  "max_ipus" (int $jobs.maxIPUs)
  "ipu_visibility" (include "muster.ipuVisibility" .)
  "advertise_on_master" .Values.ipuVisibility.advertiseOnMaster
  "devel_logs" $own.develLogs
  "log_format" .Values.logFormat -}}
{{- with include "muster.extenderPort" . }}{{ $_ := set $settings "extender_port" (int .) }}{{ end -}}
{{- if not $hooks.patch.enabled -}}
{{- if not $hooks.certificateSecret }}{{ fail "\n\nadmissionWebhooks.patch.enabled is false, so the operator creates no certificate: set admissionWebhooks.certificateSecret to a Secret with tls.crt and tls.key\n" }}{{ end -}}
{{- $_ := set $settings "cert_dir" "/etc/muster/certificate" -}}
{{- end -}}
{{- toYaml (mustMergeOverwrite $settings (deepCopy ($own.config | default dict))) -}}
{{- end -}}

{{- define "muster.quarantineNamespace" -}}
{{- if .Values.tainter.enabled }}{{ include "muster.nodes" . }}{{ else }}{{ .Release.Namespace }}{{ end -}}
{{- end -}}

{{/* The ConfigMap with the V-IPU controllers. */}}
{{- define "muster.controllersMap" -}}
{{- include "muster.prefix" . }}-vipu-controllers
{{- end -}}

{{/*
The proxy watches the ConfigMap of the controllers if the chart gives it the right to; otherwise it reads the mounted file,
which the kubelet renews within about a minute.
*/}}
{{- define "muster.proxySettings" -}}
{{- $own := .Values.vipuProxy -}}
{{- $settings := dict
  "backend" $own.backend
  (ternary "controllers_map" "controllers_file" $own.rbac.create) (ternary (include "muster.controllersMap" .) "/etc/muster/controllers/controllers.yaml" $own.rbac.create)
  "tracker" $own.proxyPartitionTrackerConfigMap
  "namespace" .Release.Namespace
  "quarantine_namespace" (include "muster.quarantineNamespace" .)
  "allowed" (list (printf "%s/%s" .Release.Namespace (include "muster.controllerAccount" .)))
  "max_ipus" (int .Values.ipuJobs.maxIPUs)
  "port" (int (include "muster.proxyPort" .))
  "read_timeout" $own.proxyReadTimeoutSeconds
  "write_timeout" $own.proxyWriteTimeoutSeconds
  "idle_timeout" $own.proxyIdleTimeoutSeconds
  "log_level" (int $own.logLevel)
  "log_format" .Values.logFormat -}}
{{- toYaml (mustMergeOverwrite $settings (deepCopy ($own.config | default dict))) -}}
{{- end -}}

{{/* Security context of the container: the chart's default, overridden by the given one. arguments: given */}}
{{- define "muster.containerSecurity" -}}
{{- toYaml (mustMergeOverwrite (include "muster.noRights" . | fromYaml) (deepCopy (.given | default dict))) -}}
{{- end -}}
