{{/*
The values that the other templates read, as JSON: the chart's own, and where these say nothing those of the former chart
(_former.tpl). Beside them
  mapped, ignored, overruled   what became of the former chart's values, for NOTES.txt
  removed                      values that are none any more, with what to do about each
  off                          the former chart's switch for all of it
*/}}
{{- define "stack.values" -}}
{{- include "stack.foreign" . -}}
{{- include "stack.removes" . -}}
{{- $removed := include "stack.removed" . | fromJsonArray -}}
{{- $native := include "stack.native" . | fromJson -}}
{{- $own := $native.values -}}
{{- if and $own.loadBalancer.enabled (not $own.service.loadBalancerClass) -}}
{{- /* Before the former chart's class, which is kube-vip's. */ -}}
{{- $_ := set $own.service "loadBalancerClass" $own.loadBalancer.class -}}
{{- $_ := set $native.given "service.loadBalancerClass" true -}}
{{- end -}}
{{- $v := include "stack.former" (dict "v" $native.values "given" $native.given "patterns" $native.patterns) | fromJson -}}
{{- $_ := set $v "removed" $removed -}}
{{- $proxies := list -}}
{{- range $v.trustedProxies | compact -}}
{{- $proxies = append $proxies (contains "/" . | ternary . (printf "%s/%s" . (contains ":" . | ternary "128" "32"))) -}}
{{- end -}}
{{- $_ := set $v "trustedProxies" ($proxies | uniq) -}}
{{- range $i, $set := $v.files.fetch.sets -}}
{{- with $set.kernelVersion -}}
{{- /* Without quotes 5.10 is the number 5.1. */ -}}
{{- $kernel := eq (toString .) "5.1" | ternary "5.10" (toString .) -}}
{{- if not (has $kernel (list "5.10" "6.6" "both")) }}{{ fail (printf "files.fetch.sets[%d].kernelVersion is %v: set it to \"5.10\", \"6.6\" or both" $i .) }}{{ end -}}
{{- $_ := set $set "kernelVersion" $kernel -}}
{{- end -}}
{{- end -}}
{{- if not (kindIs "string" $v.image.tag) -}}
{{- fail "image.tag is a number, and YAML has changed what was written (1.10 is 1.1): quote it, as in tag: \"1.10\" or --set-string image.tag=1.10" -}}
{{- end -}}
{{- /* Not values, which "helm upgrade --reuse-values" would keep from the release before. */ -}}
{{- $published := .Files.Get "files/images.json" | fromJson -}}
{{- $_ := set $v.image "registry" ($v.image.registry | default (get $v.global "imageRegistry") | default $published.registry) -}}
{{- $_ := set $v.image "repository" ($v.image.repository | default $published.repository) -}}
{{- range $program, $digest := $published.digests -}}
{{- if not (or $v.image.tag (get $v.image.digests $program)) }}{{ $_ := set $v.image.digests $program $digest }}{{ end -}}
{{- end -}}
{{- $secrets := list -}}
{{- range concat (get $v.global "imagePullSecrets" | default list) $v.imagePullSecrets -}}
{{- $secrets = append $secrets (kindIs "string" . | ternary (dict "name" .) .) -}}
{{- end -}}
{{- $_ := set $v "imagePullSecrets" ($secrets | uniq) -}}
{{- toJson $v -}}
{{- end -}}

{{/*
The chart's own values, as JSON: values, where null and nothing are the default; given, the paths whose value is not the
default; and the schema's patterns.
*/}}
{{- define "stack.native" -}}
{{- $file := .Files.Get "files/defaults.json" | fromJson -}}
{{- $values := dict -}}
{{- $given := dict -}}
{{- range $path, $default := $file.values -}}
{{- $at := $.Values -}}
{{- range splitList "." $path -}}
{{- if kindIs "map" $at }}{{ $at = index $at . }}{{ end -}}
{{- end -}}
{{- if kindIs "invalid" $at -}}
{{- $at = $default -}}
{{- else -}}
{{- $at = deepCopy $at -}}
{{- if ne $path "stack" }}{{ include "stack.prune" $at }}{{ end -}}
{{- if eq $path "boots" -}}
{{- /* The former chart had other values of this name. */ -}}
{{- $own := deepCopy $default -}}
{{- $former := dict -}}
{{- range $key, $value := $at }}{{ $_ := set (ternary $own $former (hasKey $default $key)) $key $value }}{{ end -}}
{{- if and $former (eq (omit $own "resources" "logLevel" | toJson) (omit $default "resources" "logLevel" | toJson)) -}}
{{- /* These two had the same name: beside none of stack-boots' own values they are Boots'. */ -}}
{{- $_ := set $own "resources" $default.resources -}}
{{- $_ := set $own "logLevel" $default.logLevel -}}
{{- end -}}
{{- $_ := set $values "formerBoots" $former -}}
{{- $at = $own -}}
{{- end -}}
{{- if ne (toJson $at) (toJson $default) }}{{ $_ := set $given $path true }}{{ end -}}
{{- end -}}
{{- include "stack.put" (dict "in" $values "path" $path "value" $at) -}}
{{- end -}}
{{- dict "values" $values "given" $given "patterns" $file.patterns | toJson -}}
{{- end -}}

{{/* Takes out of .Values those that this chart took once (schema.defs.yaml, removed). Gives them with the remedy, as a JSON list. */}}
{{- define "stack.removed" -}}
{{- $found := list -}}
{{- range $path, $remedy := (.Files.Get "files/defaults.json" | fromJson).removed -}}
{{- $keys := splitList "." $path -}}
{{- $groups := list (dict "path" "" "in" $.Values) -}}
{{- range $key := initial $keys -}}
{{- $within := list -}}
{{- range $group := $groups -}}
{{- range $name, $value := $group.in -}}
{{- if and (kindIs "map" $value) (has $key (list "*" $name)) }}{{ $within = append $within (dict "path" (printf "%s%s." $group.path $name) "in" $value) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $groups = $within -}}
{{- end -}}
{{- range $groups -}}
{{- if and (hasKey .in (last $keys)) (not (kindIs "invalid" (index .in (last $keys)))) }}{{ $found = append $found (printf "%s%s: %s" .path (last $keys) $remedy) }}{{ end -}}
{{- $_ := unset .in (last $keys) -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* Takes keys that are null out of maps, however deep. */}}
{{- define "stack.prune" -}}
{{- $in := . -}}
{{- if kindIs "map" $in -}}
{{- range $key, $value := $in -}}
{{- if kindIs "invalid" $value }}{{ $_ := unset $in $key }}{{ else if or (kindIs "map" $value) (kindIs "slice" $value) }}{{ include "stack.prune" $value }}{{ end -}}
{{- end -}}
{{- else if kindIs "slice" $in -}}
{{- range $in }}{{ include "stack.prune" . }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* Sets a value by its path. */}}
{{- define "stack.put" -}}
{{- $at := .in -}}
{{- $keys := splitList "." .path -}}
{{- range initial $keys -}}
{{- if not (kindIs "map" (get $at .)) -}}
{{- $_ := set $at . dict -}}
{{- end -}}
{{- $at = get $at . -}}
{{- end -}}
{{- $_ := set $at (last $keys) .value -}}
{{- end -}}

{{/* Refuses the values of Tinkerbell's own chart (helm/tinkerbell), and says what to set here. */}}
{{- define "stack.foreign" -}}
{{- $old := list -}}
{{- range $key := keys .Values | sortAlpha -}}
{{- if or (hasPrefix "_" $key) (hasPrefix "." $key) }}{{ fail (printf "%s is no value of this chart: a key of your own begins with x-, such as x-%s" $key (trimAll "_." $key)) }}{{ end -}}
{{- if has $key (list "createNamespace" "envoy" "kubevip" "namespace" "pbnj" "tinkController" "tinkServer") }}{{ $old = append $old $key }}{{ end -}}
{{- end -}}
{{- if $old -}}
{{- fail (printf "%s: values of EKS Anywhere's own chart of 2022 and 2023, with Boots and Envoy, are not taken here: set publicIP and broadcast.parents in their place, or take what EKS Anywhere generates since the end of 2023 (examples/eks-anywhere.yaml)" (join ", " $old)) -}}
{{- end -}}
{{- $says := dict
  "artifactsFileServer" "the route files serves them at publicIP:7173"
  "deployment" "broadcast.parents and broadcast.kind take deployment.init.sourceInterface and interfaceMode"
  "optional" "files.fetch.sets takes optional.hookos.downloadURL, and kube-vip is installed by its own chart"
  "name" "backends.tinkerbell.host is Tinkerbell's Service" -}}
{{- $found := list -}}
{{- $hints := list -}}
{{- range $key := keys $says | sortAlpha -}}
{{- if hasKey $.Values $key }}{{ $found = append $found $key }}{{ $hints = append $hints (get $says $key) }}{{ end -}}
{{- end -}}
{{- $nested := dict
  "service.lbClass" "service.loadBalancerClass is its class"
  "service.loadBalancerIP" "publicIP is the one address"
  "service.ports" "routes.<name>.port is a port"
  "service.selector" ""
  "rbac.type" "" "rbac.name" "" "rbac.additionalRoleRules" "" "rbac.secrets" "" -}}
{{- range $path := keys $nested | sortAlpha -}}
{{- $group := get $.Values (splitList "." $path | first) -}}
{{- if and (kindIs "map" $group) (hasKey $group (splitList "." $path | last)) }}{{ $found = append $found $path }}{{ $hints = append $hints (get $nested $path) }}{{ end -}}
{{- end -}}
{{- if $found -}}
{{- $hints = compact $hints -}}
{{- fail (printf "%s %s of Tinkerbell's own chart, which stays a release of its own beside this one: leave %s out, and set here preset=tinkerbell and publicIP%s; its trustedProxies do not carry over, since here they are outer proxies, whose word on a machine's address is believed (docs/chart.md, Beside Tinkerbell's own chart)" (join ", " $found) (ternary "is a value" "are values" (eq (len $found) 1)) (ternary "it" "them" (eq (len $found) 1)) (ternary (printf "; %s" (join "; " $hints)) "" (not (empty $hints)))) -}}
{{- end -}}
{{- end -}}
