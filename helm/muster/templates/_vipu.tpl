{{/*
The V-IPU controllers. --set splits a value at each unescaped comma: the rest becomes a top-level value, split at each dot
(`c: {"d:8091:k": w}` from `c.d:8091:k=w`). These templates join the pieces again.
*/}}
{{- define "muster.known" -}}
nameOverride fullNameOverride global vipuControllers vipuServerAddr vipuServerPort vipuClusterName vipuCLusterName image namespace pullSecrets repeat PCIeBW annotations checks logFormat agent tainter run helmTest ownNode nodeKeys controller controllers ipuJobs ipuPods admissionWebhooks vipuProxy proxyPort service podAnnotations podSecurityPolicyContext securityContext resources nodeSelector tolerations affinity ipuVisibility extendedScheduler networkPolicy podDisruptionBudget monitoring grafana alerts crds uninstall
{{- end -}}

{{/* Each remaining path with its value, one per line. arguments: at (the path so far), node */}}
{{- define "muster.paths" -}}
{{- range $key, $node := .node -}}
{{- $at := ternary $key (printf "%s.%s" $.at $key) (eq $.at "") -}}
{{- if kindIs "map" $node }}{{ include "muster.paths" (dict "at" $at "node" $node) }}{{ else }}{{ printf "%s=%s\n" $at (toString $node) }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* The controllers as a comma-separated string of host:port:key=value; fails with the command to type. */}}
{{- define "muster.controllers" -}}
{{- $given := list -}}
{{- range (list .Values.global.vipuControllers .Values.vipuControllers) -}}
{{- range (kindIs "string" . | ternary (list .) .) -}}
{{- range splitList "," (. | replace "\n" ",") }}{{ if trim . }}{{ $given = append $given (trim .) }}{{ end }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $known := splitList " " (trim (include "muster.known" .)) -}}
{{- $remains := splitList "\n" (trim (include "muster.paths" (dict "at" "" "node" (omit (deepCopy .Values) "global" | include "muster.unknown" | fromYaml)))) | compact -}}
{{- if $remains -}}
{{- $whole := concat $given $remains -}}
{{- $type := printf "--set vipuControllers=%q" (join "\\," $whole) | replace "\\\\" "\\" -}}
{{- if not $given -}}
{{- fail (printf "\n\nunknown values: %s\nIf they are V-IPU controllers, type:\n\n  %s\n" (join ", " $remains) $type) -}}
{{- end -}}
{{- if gt (len $remains) 1 -}}
{{- fail (printf "\n\nvipuControllers: --set splits a value at each comma, so the order of the controllers after %q is lost: %s\nPut a backslash before each comma, and the controllers in the order in which to try them:\n\n  %s\n" (last $given) (join ", " $remains) $type) -}}
{{- end -}}
{{- $given = $whole -}}
{{- end -}}
{{- with .Values.vipuServerAddr -}}
{{- $cluster := $.Values.vipuCLusterName | default $.Values.vipuClusterName -}}
{{- $given = append $given (printf "%s:%d:muster.dev/vipu-cluster=%s" . (int $.Values.vipuServerPort) $cluster) -}}
{{- end -}}
{{- range $given | uniq -}}
{{- if not (regexMatch "^([A-Za-z0-9]([-A-Za-z0-9.]{0,251}[A-Za-z0-9])?|\\[[0-9A-Fa-f:.%]{2,60}\\]):[0-9]{1,5}:([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?=([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$" .) -}}
{{- fail (printf "\n\nvipuControllers: %q: expected host:port:key=value, such as pod001:8090:ipunode=node1\n" .) -}}
{{- end -}}
{{- $port := regexFind ":[0-9]+:" (regexReplaceAll "^\\[.*\\]" . "") | trimAll ":" | int -}}
{{- if or (lt $port 1) (gt $port 65535) }}{{ fail (printf "\n\nvipuControllers: %q: expected a port from 1 to 65535\n" .) }}{{ end -}}
{{- end -}}
{{- join "," ($given | uniq) -}}
{{- end -}}

{{/* The top-level values that the chart does not know. */}}
{{- define "muster.unknown" -}}
{{- $known := splitList " " (trim (include "muster.known" .)) -}}
{{- $rest := dict -}}
{{- range $key, $node := . }}{{ if not (has $key $known) }}{{ $_ := set $rest $key $node }}{{ end }}{{ end -}}
{{- toYaml $rest -}}
{{- end -}}

{{/* Content of the ConfigMap: a person's edit is kept until the value changes. */}}
{{- define "muster.controllersKept" -}}
{{- $values := include "muster.controllers" . -}}
{{- $live := lookup "v1" "ConfigMap" .Release.Namespace (include "muster.controllersMap" .) -}}
{{- if and $live $live.data (eq (dig "metadata" "annotations" "muster.dev/values" "-" $live) $values) -}}
{{- get $live.data "controllers.yaml" -}}
{{- else -}}{{- $values -}}{{- end -}}
{{- end -}}
