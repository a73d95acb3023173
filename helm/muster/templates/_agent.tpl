{{/*
What each check needs from its node. sys, proc: the node's, read-only. dev: device files, which only privileged containers
can open. root: the mounted file systems, and the node's dcgmi. kubelet: which pod has which device, to detect an idle node.
dbus: systemd. journal: the files of the journal. podlogs: the log files of pods. Only enabled checks count.
*/}}
{{- define "muster.checkNeeds" -}}
clock: [sys]
cpu: [sys, proc]
dcgm: [dev, proc, kubelet, root]
disk: [sys, proc, dev, root]
gpuconfig: [sys, proc, dev]
gpucount: [sys, proc, dev]
gpuecc: [dev]
gpufabric: [dev]
gpumem: [dev, proc, kubelet]
gpupower: [dev]
gputemp: [dev]
ib: [sys]
inventory: [sys]
iperf: [sys]
ipmi: [dev]
ipu: [sys, dev]
ipulink: [dev, proc, kubelet]
membw: [sys, proc, kubelet]
memory: [sys, proc]
nccl: [dev, proc, kubelet]
nic: [sys]
nvlink: [dev]
os: [sys, proc]
pciebw: [sys, dev, proc, kubelet]
pcielink: [sys, dev]
ping: []
pvc: []
remapped: [dev]
services: [dbus]
{{- end -}}

{{/* The needs of all enabled checks, as JSON. */}}
{{- define "muster.agentNeeds" -}}
{{- $needs := list -}}
{{- $checks := .Values.checks | default dict -}}
{{- range $name, $of := include "muster.checkNeeds" . | fromYaml -}}
{{- if ne (toString (dig $name "enabled" true $checks)) "false" }}{{ $needs = concat $needs $of }}{{ end -}}
{{- end -}}
{{- if ne (toString (dig "dmesg" "enabled" true $checks)) "false" -}}
{{- $source := dig "dmesg" "parameters" "source" "auto" $checks -}}
{{- if has $source (list "auto" "kmsg") }}{{ $needs = concat $needs (list "dev" "kmsg") }}{{ end -}}
{{- if eq $source "journal" }}{{ $needs = append $needs "journal" }}{{ end -}}
{{- end -}}
{{- if eq (toString (dig "containerlog" "enabled" false $checks)) "true" }}{{ $needs = concat $needs (list "podlogs" "kubelet") }}{{ end -}}
{{- $needs | uniq | sortAlpha | toJson -}}
{{- end -}}

{{/* The folder of the pods' logs, on the node and in the agent's container. */}}
{{- define "muster.podLogs" -}}
{{- dig "containerlog" "parameters" "folder" "/var/log/pods" (.Values.checks | default dict) -}}
{{- end -}}

{{/* The settings of the agent. */}}
{{- define "muster.agentSettings" -}}
{{- $config := deepCopy (.Values.agent.config | default dict) -}}
{{- $checks := dict "pciebw" (dict "parameters" (dict "min_bandwidth_gb_per_s" .Values.PCIeBW)) -}}
{{- $checks = mustMergeOverwrite $checks (deepCopy (.Values.checks | default dict)) ($config.checks | default dict) -}}
{{- $settings := dict "repeat" .Values.repeat "root" "/host" "state_dir" "/var/lib/muster" "namespace" .Values.namespace.name "log_format" .Values.logFormat "checks" $checks -}}
{{- if .Values.tainter.enabled }}{{ $_ := set $settings "tainter_url" (printf "http://muster-tainter.%s.svc:3334" .Values.namespace.name) }}{{ else }}{{ $_ := set $settings "plan" "local" }}{{ end -}}
{{- with .Values.agent.runAs }}{{ $_ := set $settings "run_as" . }}{{ end -}}
{{- toYaml (mustMergeOverwrite $settings (omit $config "checks")) -}}
{{- end -}}
