{{/*
Whether what is wanted stands in what is there, which the API server has added defaults to. Properties and lists have to
be as many. Empty: it does not. arguments: want, have
*/}}
{{- define "muster.within" -}}
{{- $is := true -}}
{{- if kindIs "map" .want -}}
{{- if kindIs "map" .have -}}
{{- range $key, $want := .want -}}
{{- if not $is -}}
{{- else if not (hasKey $.have $key) -}}{{- if $want }}{{ $is = false }}{{ end -}}{{/* the server does not store empty values */}}
{{- else -}}
{{- $have := get $.have $key -}}
{{- if and (eq $key "properties") (kindIs "map" $have) (kindIs "map" $want) (ne (len $have) (len $want)) -}}{{- $is = false -}}{{- end -}}
{{- if not (include "muster.within" (dict "want" $want "have" $have)) -}}{{- $is = false -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- else -}}{{- $is = false -}}{{- end -}}
{{- else if kindIs "slice" .want -}}
{{- if and (kindIs "slice" .have) (eq (len .want) (len .have)) -}}
{{- range $at, $want := .want -}}
{{- if and $is (not (include "muster.within" (dict "want" $want "have" (index $.have $at)))) -}}{{- $is = false -}}{{- end -}}
{{- end -}}
{{- else -}}{{- $is = false -}}{{- end -}}
{{- else if or (kindIs "float64" .want) (kindIs "int64" .want) -}}
{{- if ne (float64 .want) (float64 .have) }}{{ $is = false }}{{ end -}}
{{- else if ne (toString .want) (toString .have) -}}{{- $is = false -}}
{{- end -}}
{{- if $is }}true{{ end -}}
{{- end -}}

{{/* The files of CRDs that need an update, as JSON. Helm itself only creates missing CRDs, at an install, and never updates
one. */}}
{{- define "muster.oldCrds" -}}
{{- $old := list -}}
{{- range $path, $_ := .Files.Glob "crds/*.yaml" -}}
{{- $want := $.Files.Get $path | fromYaml -}}
{{- $have := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $want.metadata.name -}}
{{- if $have -}}
{{- if not (include "muster.within" (dict "want" $want.spec "have" $have.spec)) }}{{ $old = append $old $path }}{{ end -}}
{{- else if $.Release.IsUpgrade }}{{ $old = append $old $path }}{{ end -}}
{{- end -}}
{{- toJson $old -}}
{{- end -}}
