{{/* Which rights of the tainter the policy needs, as JSON: {drain, repairJobs, suspendJobs, trials, devices}. `muster doctor` decides
the same for the policy in force (tainter/muster_tainter/policy/needed_rights.py). */}}
{{- define "muster.policyNeeds" -}}
{{- $policy := .Values.tainter.policy | default (.Files.Get "files/policy.yaml") -}}
{{- if kindIs "string" $policy }}{{ $policy = fromYaml $policy }}{{ end -}}
{{- $checks := mustMergeOverwrite (deepCopy (.Values.checks | default dict)) (deepCopy (dig "checks" dict (.Values.agent.config | default dict))) -}}
{{- $drain := false -}}{{- $jobs := false -}}{{- $own := .Values.tainter.repairNamespace.name -}}
{{- $named := ternary (list "pvc") list (and (not (empty (dig "pvc" dict $checks))) (ne (toString (dig "pvc" "enabled" true $checks)) "false")) -}}
{{- range (kindIs "slice" $policy.rules | ternary $policy.rules list) }}{{ if kindIs "map" . -}}
{{- if eq (toString .action) "drain" }}{{ $drain = true }}{{ end -}}
{{- $match := get (.match | default dict) "check" | default list -}}
{{- $named = concat $named (kindIs "slice" $match | ternary $match (list $match)) (get (.proof | default dict) "checks" | default list) -}}
{{- end }}{{ end -}}
{{- $stepTimes := get (kindIs "map" $policy.sources | ternary $policy.sources dict) "stepTimes" -}}
{{- $suspend := false -}}
{{- if kindIs "map" $stepTimes -}}
{{- if eq (toString $stepTimes.evict) "true" }}{{ $drain = true }}{{ end -}}
{{- $suspend = or (eq (toString $stepTimes.suspend) "true") (has "Job" (include "muster.suspendedKinds" . | fromJsonArray)) -}}
{{- end -}}
{{- range (kindIs "slice" $policy.pools | ternary $policy.pools list) }}{{ if kindIs "map" . -}}
{{- if has (get (.drain | default dict) "when") (list "after" "now") }}{{ $drain = true }}{{ end -}}
{{- $testing := .testing | default dict -}}
{{- $named = concat $named ($testing.preFlight | default list) ($testing.postFlight | default list) -}}
{{- range $remedy := omit (.repair | default dict) "atOnce" }}{{ if kindIs "map" $remedy.job -}}
{{- if eq (dig "template" "metadata" "namespace" $own $remedy.job | toString) $own }}{{ $jobs = true }}{{ end -}}
{{- end }}{{ end -}}
{{- end }}{{ end -}}
{{- $devices := has (toString (get ($policy.devices | default dict) "quarantine")) (list "preview" "rules") -}}
{{- dict "drain" $drain "repairJobs" $jobs "suspendJobs" $suspend "trials" (has "pvc" $named) "devices" $devices | toJson -}}
{{- end -}}

{{/* Kinds of jobs that can be suspended, besides Job (tainter/muster_tainter/step_times/job_suspension.py), as YAML. */}}
{{- define "muster.jobKinds" -}}
JobSet: {group: jobset.x-k8s.io, plural: jobsets}
TrainJob: {group: trainer.kubeflow.org, plural: trainjobs, through: {group: jobset.x-k8s.io, plural: jobsets}}
PyTorchJob: {group: kubeflow.org, plural: pytorchjobs}
MPIJob: {group: kubeflow.org, plural: mpijobs}
RayJob: {group: ray.io, plural: rayjobs, through: {group: ray.io, plural: rayclusters}}
IPUJob: {group: graphcore.ai, plural: ipujobs}
{{- end -}}

{{/* The kinds that the policy has suspended, as a JSON list (sources.stepTimes.suspend; true: Job). */}}
{{- define "muster.suspendedKinds" -}}
{{- $policy := .Values.tainter.policy | default (.Files.Get "files/policy.yaml") -}}
{{- if kindIs "string" $policy }}{{ $policy = fromYaml $policy }}{{ end -}}
{{- $stepTimes := get (kindIs "map" $policy.sources | ternary $policy.sources dict) "stepTimes" -}}
{{- $given := kindIs "map" $stepTimes | ternary (get ($stepTimes | default dict) "suspend") nil -}}
{{- kindIs "slice" $given | ternary $given (kindIs "string" $given | ternary (list $given) list) | toJson -}}
{{- end -}}

{{/* "true" if the tainter has the rights that tainter.allow.NAME grants. arguments: root, name */}}
{{- define "muster.allowed" -}}
{{- $given := toString (get .root.Values.tainter.allow .name) -}}
{{- if .root.Values.tainter.enabled -}}
{{- if eq $given "true" }}true{{ else if and (eq $given "auto") (get (include "muster.policyNeeds" .root | fromJson) .name) }}true{{ end -}}
{{- end -}}
{{- end -}}

{{/* The tainter's namespace for repairs or trials, if it is in use. Agents run with host paths, so theirs cannot have a strict
Pod Security level. arguments: root, value */}}
{{- define "muster.jobNamespace" -}}
{{- $right := eq .value "repairNamespace" | ternary "repairJobs" "trials" -}}
{{- if include "muster.allowed" (dict "root" .root "name" $right) -}}
{{- $name := get .root.Values.tainter .value | dig "name" "" -}}
{{- if eq $name (include "muster.nodes" .root) -}}
{{- fail (printf "\n\ntainter.%s.name: %s is the namespace of the agents, in which privileged pods are allowed: use another name\n" .value $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}
{{- end -}}
