{{/*
The former chart (tinkerbell/charts, 0.2 to 0.6.3). Everything that it took is taken: mapped, or ignored and named in
NOTES.txt (docs/former-chart.md has the table).

Takes v: the chart's own values, given: those of them that differ from their default, patterns: the schema's. Gives, as
JSON, v with the former chart's values where it says nothing itself, and mapped, ignored, overruled, off.
*/}}
{{- define "stack.former" -}}
{{- $v := .v -}}
{{- $given := .given -}}
{{- $global := $v.global -}}
{{- $mapped := list -}}
{{- $ignored := list -}}
{{- $overruled := list -}}
{{- $blocks := list "stack" "smee" "hegel" "tink" "rufio" "formerBoots" -}}
{{- $former := false -}}
{{- range $blocks }}{{ if get $v . }}{{ $former = true }}{{ end }}{{ end -}}
{{- range list "publicIP" "trustedProxies" "rbac.type" -}}
{{- if (include "stack.dig" (dict "in" $global "path" .) | fromJson).set }}{{ $former = true }}{{ end -}}
{{- end -}}
{{- if and $former (not $v.preset) }}{{ $_ := set $v "preset" "classic" }}{{ end -}}
{{- /* What the former chart did where its values said nothing, as of 0.6.3. */ -}}
{{- $defaults := dict -}}
{{- if $former -}}
{{- $defaults = dict "stack.name" "tink-stack" "stack.lbClass" "kube-vip.io/kube-vip-class" "stack.relay.maxHopCount" 10
  "global.publicIP" "192.168.2.113" "stack.hook.downloadURL" "https://github.com/tinkerbell/hook/releases/download/v0.10.0" -}}
{{- if (include "stack.dig" (dict "in" $v "path" "stack.loadBalancerIP") | fromJson).value }}{{ $_ := unset $defaults "global.publicIP" }}{{ end -}}
{{- end -}}

{{- if and $v.formerBoots (not $v.smee) -}}
{{- /* Boots, up to 0.3, became Smee. */ -}}
{{- $port := (include "stack.dig" (dict "in" $v.formerBoots "path" "http.port") | fromJson).value | default 80 -}}
{{- $_ := set $v "smee" (dict "name" (get $v.formerBoots "name" | default "boots") "http" (dict "port" $port)) -}}
{{- range list "hostNetwork" "deploy" }}{{ if hasKey $v.formerBoots . }}{{ $_ := set $v.smee . (get $v.formerBoots .) }}{{ end }}{{ end -}}
{{- $heard := include "stack.dig" (dict "in" $v "path" "smee.hostNetwork") | fromJson -}}
{{- $relay := include "stack.dig" (dict "in" $v "path" "stack.relay.enabled") | fromJson -}}
{{- if and (eq $v.preset "classic") (eq (toString $heard.value) "true") (not $relay.set) (not (hasKey $given "relay.enabled")) -}}
{{- /* 0.2 had no relay: Boots hears machines itself, on the node's network. */ -}}
{{- $_ := set $v.relay "enabled" false -}}
{{- $mapped = append $mapped "boots.hostNetwork=true -> relay.enabled=false: Boots hears machines itself" -}}
{{- end -}}
{{- end -}}
{{- /* Single values: from where, of which kind, to where. */ -}}
{{- $moves := list
  (list "global.publicIP" "address" "publicIP")
  (list "stack.loadBalancerIP" "address" "publicIP")
  (list "global.nodeSelector" "labels" "nodeSelector")
  (list "stack.nodeSelector" "labels" "nodeSelector")
  (list "stack.clusterDomain" "domain" "clusterDomain")
  (list "stack.name" "name" "service.name")
  (list "stack.service.type" "service type" "service.type")
  (list "stack.service.annotations" "labels" "service.annotations")
  (list "stack.hook.enabled" "switch" "files.enabled")
  (list "stack.hook.port" "port" "routes.files.port")
  (list "stack.relay.enabled" "switch" "relay.enabled")
  (list "stack.relay.maxHopCount" "hops" "relay.maxHops")
  (list "stack.relay.interfaceMode" "interface mode" "broadcast.kind")
  (list "hegel.name" "host" "backends.hegel.host")
  (list "hegel.service.port" "port" "backends.hegel.port" "routes.hegel.port")
  (list "tink.server.name" "host" "backends.tink.host")
  (list "tink.server.service.port" "port" "backends.tink.port" "routes.tink.port")
  (list "smee.name" "host" "backends.smee.host")
  (list "smee.http.port" "port" "backends.smee.httpPort" "routes.smee-http.port")
  (list "smee.tftp.port" "port" "backends.smee.tftpPort" "routes.smee-tftp.port")
  (list "smee.syslog.port" "port" "backends.smee.syslogPort" "routes.smee-syslog.port") -}}
{{- $known := list -}}
{{- $own := dict "routes" (deepCopy $v.routes) -}}
{{- range $move := $moves -}}
{{- $from := index $move 0 -}}
{{- $known = append $known $from -}}
{{- $value := include "stack.dig" (dict "in" $v "path" $from) | fromJson -}}
{{- $default := get $defaults $from -}}
{{- if and (hasPrefix "backends." (index $move 2)) (ne $v.preset "classic") -}}
{{- if $value.set }}{{ $ignored = append $ignored (printf "%s: preset %s has no such backend" $from $v.preset) }}{{ end -}}
{{- else if or $value.set $default -}}
{{- $taken := include "stack.formerValue" (dict "path" $from "kind" (index $move 1) "value" (ternary $value.value $default $value.set) "patterns" $.patterns) | fromJson -}}
{{- range $to := slice $move 2 -}}
{{- if or (hasKey $given $to) (and (hasPrefix "routes." $to) (include "stack.dig" (dict "in" $own "path" $to) | fromJson).set) -}}
{{- if $value.set }}{{ $overruled = append $overruled (printf "%s: %s is set, and counts" $from $to) }}{{ end -}}
{{- else -}}
{{- include "stack.put" (dict "in" $v "path" $to "value" $taken.value) -}}
{{- $mapped = append $mapped (printf "%s%s -> %s" $from (ternary "" (printf " (by default %s)" (toString $default)) $value.set) (ternary (printf "%s=%s" $to (toString $taken.value)) $to $taken.changed)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Values that mean something else here. */ -}}
{{- $switch := dict "kind" "switch" "patterns" .patterns -}}
{{- $known = concat $known (list "stack.enabled" "stack.lbClass" "stack.hostNetwork" "stack.service.enabled" "stack.deployment.strategy"
  "stack.relay.sourceInterface" "stack.relay.listenBroadcastTraffic" "stack.hook.downloadURL" "stack.hook.arch" "stack.hook.extension"
  "stack.hook.kernelVersion" "stack.hook.downloads" "stack.hook.persistence.existingClaim" "stack.kubevip"
  "stack.singleNodeClusterConfig.controlPlaneTolerationsEnabled" "stack.singleNodeClusterConfig.nodeAffinityWeight") -}}
{{- $stack := dict -}}
{{- range $path := list "enabled" "lbClass" "hostNetwork" "service.enabled" "deployment.strategy" "relay.sourceInterface" "relay.listenBroadcastTraffic"
  "hook.downloadURL" "hook.arch" "hook.extension" "hook.kernelVersion" "hook.downloads" "hook.persistence.existingClaim" "kubevip.enabled"
  "singleNodeClusterConfig.controlPlaneTolerationsEnabled" "singleNodeClusterConfig.nodeAffinityWeight" -}}
{{- $value := include "stack.dig" (dict "in" $v.stack "path" $path) | fromJson -}}
{{- $kind := get (dict "enabled" "switch" "hostNetwork" "switch" "service.enabled" "switch" "relay.listenBroadcastTraffic" "switch"
  "kubevip.enabled" "switch" "singleNodeClusterConfig.controlPlaneTolerationsEnabled" "switch" "singleNodeClusterConfig.nodeAffinityWeight" "weight"
  "hook.downloadURL" "URL" "hook.arch" "architecture" "hook.extension" "extension" "hook.kernelVersion" "kernel version"
  "hook.persistence.existingClaim" "claim" "relay.sourceInterface" "interface" "deployment.strategy" "strategy") $path -}}
{{- if and $value.set $kind -}}
{{- $value = dict "set" true "value" (include "stack.formerValue" (dict "path" (printf "stack.%s" $path) "kind" $kind "value" $value.value "patterns" $.patterns) | fromJson).value -}}
{{- end -}}
{{- if $value.set }}{{ $_ := set $stack $path $value.value }}{{ end -}}
{{- end -}}

{{- /* A class that is set to nothing is none. */ -}}
{{- $class := include "stack.dig" (dict "in" $v.stack "path" "lbClass") | fromJson -}}
{{- $isClass := ternary ($class.value | default "") (get $defaults "stack.lbClass" | default "") $class.present -}}
{{- if and $isClass (eq $v.service.type "LoadBalancer") -}}
{{- if hasKey $given "service.loadBalancerClass" -}}
{{- if $class.present }}{{ $overruled = append $overruled "stack.lbClass: service.loadBalancerClass is set, and counts" }}{{ end -}}
{{- else -}}
{{- $_ := set $v.service "loadBalancerClass" (include "stack.formerValue" (dict "path" "stack.lbClass" "kind" "class" "value" $isClass "patterns" .patterns) | fromJson).value -}}
{{- $mapped = append $mapped (printf "stack.lbClass%s -> service.loadBalancerClass" (ternary "" (printf " (by default %s)" $isClass) $class.present)) -}}
{{- end -}}
{{- end -}}

{{- if and (eq $v.service.type "NodePort") (not (hasKey $given "service.type")) (not (hasKey $given "service.externalTrafficPolicy")) -}}
{{- $_ := set $v.service "externalTrafficPolicy" "Cluster" -}}
{{- $mapped = append $mapped "stack.service.type=NodePort -> service.externalTrafficPolicy=Cluster" -}}
{{- end -}}

{{- $strategy := get $stack "deployment.strategy" | default dict -}}
{{- include "stack.prune" $strategy -}}
{{- if and (eq (len (keys $strategy)) 1) (eq (toString $strategy.type) "RollingUpdate") -}}
{{- /* The former default. Kubernetes' own details of it would run two listeners on one interface. */ -}}
{{- $strategy = dict -}}
{{- end -}}
{{- if and $strategy (hasKey $given "updateStrategy") -}}
{{- $overruled = append $overruled "stack.deployment.strategy: updateStrategy is set, and counts" -}}
{{- else if $strategy -}}
{{- $_ := set $v "updateStrategy" $strategy -}}
{{- $mapped = append $mapped "stack.deployment.strategy -> updateStrategy" -}}
{{- end -}}

{{- /* Without a Service the former pod was on the node's network. */ -}}
{{- $noService := and (hasKey $stack "service.enabled") (not (get $stack "service.enabled")) -}}
{{- if and $noService (hasKey $given "service.enabled") -}}
{{- $noService = false -}}
{{- else if $noService -}}
{{- $_ := set $v.service "enabled" false -}}
{{- $mapped = append $mapped "stack.service.enabled=false -> service.enabled=false" -}}
{{- end -}}
{{- $host := or $noService (get $stack "hostNetwork") -}}
{{- $hostKey := ternary "stack.service.enabled=false" "stack.hostNetwork=true" $noService -}}
{{- $noBroadcast := and (hasKey $stack "relay.listenBroadcastTraffic") (not (get $stack "relay.listenBroadcastTraffic")) -}}
{{- $interface := get $stack "relay.sourceInterface" | default "" -}}
{{- $unheard := false -}}
{{- if and $host (hasKey $given "broadcast.provider") -}}
{{- $overruled = append $overruled (printf "%s: broadcast.provider is set, and counts" $hostKey) -}}
{{- else if $host -}}
{{- $_ := set $v.broadcast "provider" "hostNetwork" -}}
{{- $mapped = append $mapped (printf "%s -> broadcast.provider=hostNetwork" $hostKey) -}}
{{- if and $v.relay.enabled (not $v.broadcast.parents) (or $noBroadcast (not $interface)) -}}
{{- $unheard = true -}}
{{- if not $noBroadcast -}}
{{- $ignored = append $ignored "stack.relay.sourceInterface is not set: on the node's network the relay hears no broadcasts, only what other relays send to it, until it (or broadcast.parents) names the interface" -}}
{{- end -}}
{{- end -}}
{{- else if $noBroadcast -}}
{{- if hasKey $given "broadcast.provider" -}}
{{- $overruled = append $overruled "stack.relay.listenBroadcastTraffic: broadcast.provider is set, and counts" -}}
{{- $noBroadcast = false -}}
{{- else -}}
{{- $_ := set $v.broadcast "provider" "none" -}}
{{- $mapped = append $mapped "stack.relay.listenBroadcastTraffic=false -> broadcast.provider=none" -}}
{{- end -}}
{{- end -}}
{{- if $interface -}}
{{- if hasKey $given "broadcast.parents" -}}
{{- $overruled = append $overruled "stack.relay.sourceInterface: broadcast.parents is set, and counts" -}}
{{- else if and $v.relay.enabled (not $noBroadcast) (has $v.broadcast.provider (list "init" "hostNetwork")) -}}
{{- $_ := set $v.broadcast "parents" (list $interface) -}}
{{- $mapped = append $mapped "stack.relay.sourceInterface -> broadcast.parents" -}}
{{- else -}}
{{- /* It was the interface to listen on, and said nothing where nobody did. */ -}}
{{- $ignored = append $ignored (printf "stack.relay.sourceInterface: nothing listens there, since %s" (ternary "stack.relay.listenBroadcastTraffic is false" (ternary (printf "broadcast.provider is %s" $v.broadcast.provider) "stack.relay.enabled is false" $v.relay.enabled) $noBroadcast)) -}}
{{- end -}}
{{- end -}}

{{- $claim := get $stack "hook.persistence.existingClaim" | default "" -}}
{{- if $claim -}}
{{- if or (hasKey $given "files.volume.type") (hasKey $given "files.volume.existingClaim") -}}
{{- $overruled = append $overruled "stack.hook.persistence.existingClaim: files.volume is set, and counts" -}}
{{- else -}}
{{- $_ := set $v.files.volume "type" "existingClaim" -}}
{{- $_ := set $v.files.volume "existingClaim" $claim -}}
{{- $mapped = append $mapped "stack.hook.persistence.existingClaim -> files.volume" -}}
{{- end -}}
{{- end -}}

{{- $from := list -}}
{{- range list "downloadURL" "arch" "extension" "kernelVersion" "downloads" }}{{ if hasKey $stack (printf "hook.%s" .) }}{{ $from = append $from . }}{{ end }}{{ end -}}
{{- $fetch := dict -}}
{{- $downloads := get $stack "hook.downloads" -}}
{{- if $downloads -}}
{{- include "stack.formerDownloads" (dict "downloads" $downloads "into" $fetch) -}}
{{- else if or $former $from -}}
{{- $set := dict "name" "hook" "url" (get $stack "hook.downloadURL" | default (get $defaults "stack.hook.downloadURL")) -}}
{{- $_ := set $set "arch" (get $stack "hook.arch" | default "both") -}}
{{- $_ := set $set "extension" (get $stack "hook.extension" | default "tar.gz") -}}
{{- $kernel := get $stack "hook.kernelVersion" | default "both" -}}
{{- $_ := set $set "kernelVersion" (ternary "5.10" $kernel (eq $kernel "both")) -}}
{{- $_ := set $fetch "sets" (list $set) -}}
{{- if eq $kernel "both" -}}
{{- /* Two sets, so that vmlinuz-<arch> stays the former chart's, which is 5.10. In one it would be 6.6. */ -}}
{{- $_ := set $fetch "sets" (list $set (merge (dict "name" "hook-6.6" "kernelVersion" "6.6") $set)) -}}
{{- end -}}
{{- end -}}
{{- if and $former $v.files.enabled -}}
{{- if or (hasKey $given "files.fetch") (hasKey $given "files.volume.subPath") (eq $v.files.volume.type "image") -}}
{{- if $from }}{{ $overruled = append $overruled (printf "stack.hook.%s: files is set, and counts" (join ", " $from)) }}{{ end -}}
{{- else if $fetch -}}
{{- $_ := set $v.files "fetch" $fetch -}}
{{- $mapped = append $mapped (printf "stack.hook.%s -> files.fetch" (ternary (join ", " $from) (printf "downloadURL (by default %s)" (get $defaults "stack.hook.downloadURL")) (not (empty $from)))) -}}
{{- else -}}
{{- $ignored = append $ignored "stack.hook.downloads: has sums of what is in the archives, not of the archives, so nothing is fetched; set files.fetch" -}}
{{- end -}}
{{- else if and $former $from -}}
{{- $ignored = append $ignored (printf "stack.hook.%s: nothing is fetched, since stack.hook.enabled is false" (join ", " $from)) -}}
{{- end -}}

{{- if get $stack "singleNodeClusterConfig.controlPlaneTolerationsEnabled" -}}
{{- $taint := dict "key" "node-role.kubernetes.io/control-plane" "operator" "Exists" "effect" "NoSchedule" -}}
{{- $_ := set $v "tolerations" (append $v.tolerations $taint | uniq) -}}
{{- $to := "tolerations" -}}
{{- if not (hasKey $given "affinity") -}}
{{- $workers := dict "matchExpressions" (list (dict "key" "node-role.kubernetes.io/control-plane" "operator" "DoesNotExist")) -}}
{{- $preferred := list (dict "weight" (get $stack "singleNodeClusterConfig.nodeAffinityWeight" | default 1) "preference" $workers) -}}
{{- $_ := set $v "affinity" (dict "nodeAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" $preferred)) -}}
{{- $to = "tolerations, affinity" -}}
{{- else -}}
{{- $overruled = append $overruled "stack.singleNodeClusterConfig.nodeAffinityWeight: affinity is set, and counts" -}}
{{- end -}}
{{- $mapped = append $mapped (printf "stack.singleNodeClusterConfig -> %s" $to) -}}
{{- end -}}

{{- $smee := dict -}}
{{- range $path := list "hostNetwork" "deploy" -}}
{{- $value := include "stack.dig" (dict "in" $v.smee "path" $path) | fromJson -}}
{{- if $value.set }}{{ $_ := set $smee $path (include "stack.formerValue" (dict "path" (printf "smee.%s" $path) "kind" "switch" "value" $value.value "patterns" $.patterns) | fromJson).value }}{{ end -}}
{{- end -}}
{{- if and (eq $v.preset "classic") (or $smee.hostNetwork (and (hasKey $smee "deploy") (not $smee.deploy))) -}}
{{- range list "smee-http" "smee-tftp" "smee-syslog" -}}
{{- $path := printf "routes.%s.enabled" . -}}
{{- if not (include "stack.dig" (dict "in" $own "path" $path) | fromJson).set }}{{ include "stack.put" (dict "in" $v "path" $path "value" false) }}{{ end -}}
{{- end -}}
{{- $mapped = append $mapped "smee.hostNetwork, smee.deploy -> routes smee-http, smee-tftp and smee-syslog are off: machines ask Smee's own address" -}}
{{- end -}}

{{- /* What has no place any more. */ -}}
{{- $says := dict
  "stack.image" "the programs are this project's own (image)" "stack.relay.image" "the programs are this project's own (image)"
  "stack.relay.initImage" "the programs are this project's own (image)" "stack.hook.image" "the programs are this project's own (image)"
  "stack.selector" "the pods have this chart's labels" "stack.relay.name" "the containers are called after their programs"
  "stack.hook.name" "the route is called files" "stack.relay.presentGiaddrAction" "a giaddr or option 82 that is there already goes to the server as it is"
  "stack.hook.persistence.localPersistentVolume" "a directory of one node; choose files.volume.type" -}}
{{- $words := dict -}}
{{- range $path := include "stack.leaves" (dict "in" $v.stack "path" "stack") | splitList "\n" | compact -}}
{{- $taken := false -}}
{{- range $known }}{{ if or (eq $path .) (hasPrefix (printf "%s." .) $path) }}{{ $taken = true }}{{ end }}{{ end -}}
{{- if not $taken -}}
{{- $word := "it has no meaning here" -}}
{{- range $at, $text := $says }}{{ if or (eq $path $at) (hasPrefix (printf "%s." $at) $path) }}{{ $word = $text }}{{ $path = $at }}{{ end }}{{ end -}}
{{- $_ := set $words $word (append (get $words $word | default list) $path | uniq) -}}
{{- end -}}
{{- end -}}
{{- range $key := keys $global | sortAlpha -}}
{{- /* An umbrella's other globals are others' business; one that is nearly ours is a misspelt one. */ -}}
{{- if and (or $former (has (lower $key) (list "publicip" "trustedproxies" "nodeselector" "imageregistry" "imagepullsecrets"))) (not (has $key (list "publicIP" "trustedProxies" "nodeSelector" "imageRegistry" "imagePullSecrets"))) -}}
{{- $_ := set $words "it has no meaning here" (append (get $words "it has no meaning here" | default list) (printf "global.%s" $key)) -}}
{{- end -}}
{{- end -}}
{{- range $word, $paths := $words -}}
{{- $ignored = append $ignored (printf "%s: %s" (join ", " $paths) $word) -}}
{{- end -}}
{{- $off := or (not $v.enabled) (and (hasKey $stack "enabled") (not (get $stack "enabled"))) -}}
{{- $kubevip := ternary (get $stack "kubevip.enabled") true (hasKey $stack "kubevip.enabled") -}}
{{- if and $former $kubevip (not $off) (hasPrefix "kube-vip.io/" $v.service.loadBalancerClass) -}}
{{- $ignored = append $ignored "stack.kubevip: this chart brings no load balancer; keep the former kube-vip (docs/former-chart.md, step 3) or install one by its own chart, or the Service gets no address" -}}
{{- end -}}
{{- $believed := list -}}
{{- range list "global.trustedProxies" "smee.trustedProxies" "hegel.trustedProxies" "formerBoots.trustedProxies" "formerBoots.boots.trustedProxies" -}}
{{- if (include "stack.dig" (dict "in" $v "path" .) | fromJson).set }}{{ $believed = append $believed (replace "formerBoots" "boots" .) }}{{ end -}}
{{- end -}}
{{- if $believed -}}
{{- $ignored = append $ignored (printf "%s: said whom Smee and Hegel believe, which is theirs to set; trustedProxies here is whom the stack itself believes, and that is nobody but an outer proxy" (join ", " $believed)) -}}
{{- end -}}
{{- if $v.formerBoots -}}
{{- $ignored = append $ignored "boots: Boots became Smee: its name, HTTP port, hostNetwork and deploy are taken, the rest is not" -}}
{{- end -}}
{{- range list "rufio" "smee" "hegel" "tink" -}}
{{- if get $v . -}}
{{- $ignored = append $ignored (printf "%s.*, but for names and ports: this chart does not install it" .) -}}
{{- end -}}
{{- end -}}
{{- merge (dict "mapped" $mapped "ignored" $ignored "overruled" $overruled "off" $off "unheard" $unheard) $v | toJson -}}
{{- end -}}

{{/*
Refuses to become the next revision of a release of the former chart, which had this one's name, where its Smee, Hegel, Tink
or Rufio would be removed by that. An object of ours depends on nothing that is looked up: without a cluster ("helm
template", Argo CD) the answer is empty, and it is asked only in an upgrade. What an earlier revision of ours left is not
Helm's to remove any more.
*/}}
{{- define "stack.removes" -}}
{{- if .Release.IsUpgrade -}}
{{- if not (lookup "apps/v1" "Deployment" (include "stack.namespace" .) (printf "%s-proxy" (include "stack.fullname" .))) -}}
{{- $gone := list -}}
{{- range (lookup "apps/v1" "Deployment" .Release.Namespace "").items -}}
{{- $notes := .metadata.annotations | default dict -}}
{{- /* All of the former subcharts labelled a Deployment with its own name. */ -}}
{{- if and (eq (get $notes "meta.helm.sh/release-name") $.Release.Name) (eq (get (.metadata.labels | default dict) "app") .metadata.name) (ne (get $notes "helm.sh/resource-policy") "keep") -}}
{{- $gone = append $gone .metadata.name -}}
{{- end -}}
{{- end -}}
{{- if $gone -}}
{{- $eks := ternary "; in eksa-system \"eksctl anywhere upgrade\" owns the release, and would bring the former chart back" "" (eq .Release.Namespace "eksa-system") -}}
{{- fail (printf "this upgrade would remove %s: release %s is of another chart of this name (tinkerbell/charts, before 1.0), and this one is the stack alone. kube-vip and the Services would go too, and the address with them. Nothing was changed. Install this chart as a release of its own beside it: docs/former-chart.md (what has the annotation helm.sh/resource-policy=keep is not removed, and not counted here%s)" (join ", " ($gone | sortAlpha)) .Release.Name $eks) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
A value of the former chart as this one takes it, as JSON: value, and changed: whether it is another than was written.
Refuses, by the name of the former key, what this chart's schema would. Takes path, kind, value and patterns.
*/}}
{{- define "stack.formerValue" -}}
{{- $kind := .kind -}}
{{- $value := .value -}}
{{- $text := toString $value -}}
{{- $changed := false -}}
{{- $good := true -}}
{{- $what := printf "no %s" $kind -}}
{{- $choices := dict "service type" (list "LoadBalancer" "NodePort" "ClusterIP")
  "interface mode" (list "macvlan" "ipvlan") "architecture" (list "x86_64" "aarch64" "both") "extension" (list "tar.gz" "iso" "both")
  "kernel version" (list "5.10" "6.6" "both") -}}
{{- if and (eq $kind "kernel version") (eq $text "5.1") -}}
{{- /* 5.10 without quotes is the number 5.1. */ -}}
{{- $value = "5.10" -}}
{{- $text = "5.10" -}}
{{- end -}}
{{- if hasKey $choices $kind -}}
{{- $good = has $text (get $choices $kind) -}}
{{- $value = $text -}}
{{- $what = printf "none of %s" (get $choices $kind | join ", ") -}}
{{- else if eq $kind "switch" -}}
{{- $good = has $text (list "true" "false") -}}
{{- $value = eq $text "true" -}}
{{- $what = "neither true nor false" -}}
{{- else if has $kind (list "port" "hops" "weight") -}}
{{- $most := get (dict "port" 65535 "hops" 255 "weight" 100) $kind -}}
{{- $good = and (regexMatch "^[1-9][0-9]{0,4}$" $text) (le (int $text) $most) -}}
{{- $value = int $text -}}
{{- $what = printf "no number from 1 to %d" $most -}}
{{- if and $good (eq $kind "hops") (gt (int $text) 16) -}}
{{- $value = 16 -}}
{{- $changed = true -}}
{{- end -}}
{{- else if eq $kind "address" -}}
{{- $good = regexMatch .patterns.address $text -}}
{{- $what = "no IP address" -}}
{{- else if eq $kind "labels" -}}
{{- $good = kindIs "map" $value -}}
{{- $what = "no map of strings" -}}
{{- if $good -}}
{{- $all := dict -}}
{{- range $key, $each := $value }}{{ if not (kindIs "invalid" $each) }}{{ $_ := set $all $key (toString $each) }}{{ end }}{{ end -}}
{{- $value = $all -}}
{{- end -}}
{{- else if eq $kind "strategy" -}}
{{- $good = and (kindIs "map" $value) (has (toString (get $value "type")) (list "RollingUpdate" "Recreate")) -}}
{{- $text = toJson $value -}}
{{- $what = "no strategy of type RollingUpdate or Recreate" -}}
{{- else -}}
{{- $pattern := get (dict "name" "serviceName" "host" "host" "domain" "domain" "class" "class" "claim" "secretName" "interface" "parents") $kind -}}
{{- if $pattern }}{{ $good = regexMatch (get .patterns $pattern) $text }}{{ end -}}
{{- if eq $kind "URL" }}{{ $good = regexMatch "^https?://[^\\s/]+" $text }}{{ end -}}
{{- $what = get (dict "name" "no name of a Service" "host" "no host name or IP address" "domain" "no domain" "class" "no load balancer class" "claim" "no name of a claim" "interface" "no interface" "URL" "no http or https URL") $kind -}}
{{- $value = $text -}}
{{- end -}}
{{- if not $good }}{{ fail (printf "%s is %s, which is %s: set another, or leave it out" .path (ternary $text ($text | quote) (eq $kind "strategy")) $what) }}{{ end -}}
{{- dict "value" $value "changed" $changed | toJson -}}
{{- end -}}

{{/* HookOS as 0.3 named it: archives with their sums. Sums of files in them (0.2) cannot be held to. Takes downloads, into. */}}
{{- define "stack.formerDownloads" -}}
{{- $files := list -}}
{{- range $download := (kindIs "slice" .downloads | ternary .downloads list) -}}
{{- if kindIs "map" $download -}}
{{- $sum := get $download "sha512sum" -}}
{{- if and (kindIs "string" $sum) (regexMatch "^[0-9a-f]{128}" $sum) (regexMatch "^https?://[^\\s/]+" (toString $download.url)) -}}
{{- $files = append $files (dict "url" $download.url "digest" (printf "sha512:%s" (substr 0 128 $sum)) "extract" true) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $files }}{{ $_ := set .into "sets" (list (dict "name" "hook" "files" $files)) }}{{ end -}}
{{- end -}}

{{/* The paths of what a map has, one in each line; an empty map or a list is one. Takes in and path. */}}
{{- define "stack.leaves" -}}
{{- $path := .path -}}
{{- if and (kindIs "map" .in) .in -}}
{{- range $key, $value := .in }}{{ include "stack.leaves" (dict "in" $value "path" (printf "%s.%s" $path $key)) }}{{ end -}}
{{- else if and (not (kindIs "invalid" .in)) (not (kindIs "map" .in)) -}}
{{ printf "%s\n" $path }}
{{- end -}}
{{- end -}}

{{/* A value by its path, as JSON: value, present: whether the key is there, set: and has a value (a string that is not empty). */}}
{{- define "stack.dig" -}}
{{- $at := .in -}}
{{- $present := true -}}
{{- range splitList "." .path -}}
{{- if and $present (kindIs "map" $at) (hasKey $at .) -}}
{{- $at = index $at . -}}
{{- else -}}
{{- $present = false -}}
{{- end -}}
{{- end -}}
{{- $set := and $present (not (kindIs "invalid" $at)) (or (kindIs "bool" $at) (kindIs "float64" $at) (kindIs "int64" $at) (not (empty $at))) -}}
{{- dict "present" $present "set" $set "value" (ternary $at "" $present) | toJson -}}
{{- end -}}
