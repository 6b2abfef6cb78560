{{/*
The values that the other templates read: the chart's own, with those of the former chart (stack.*, smee.*, hegel.*,
tink.*, global.*) written over them. As YAML: the values, and beside them
  mapped, ignored   what became of the former chart's values, for NOTES.txt
  off               the former chart's switch for all of it
*/}}
{{- define "stack.values" -}}
{{- $v := deepCopy .Values -}}
{{- $old := .Values.stack | default dict -}}
{{- $global := .Values.global | default dict -}}
{{- $mapped := list -}}
{{- $ignored := list -}}

{{- /* Single values: where from, where to. */ -}}
{{- $moves := list
  (list "global.publicIP" "publicIP") (list "stack.loadBalancerIP" "publicIP")
  (list "global.trustedProxies" "trustedProxies")
  (list "global.nodeSelector" "nodeSelector") (list "stack.nodeSelector" "nodeSelector")
  (list "stack.clusterDomain" "clusterDomain")
  (list "stack.name" "service.name") (list "stack.lbClass" "service.loadBalancerClass")
  (list "stack.service.type" "service.type") (list "stack.service.annotations" "service.annotations")
  (list "stack.hook.enabled" "files.enabled")
  (list "stack.relay.enabled" "relay.enabled") (list "stack.relay.maxHopCount" "relay.maxHops")
  (list "stack.relay.presentGiaddrAction" "relay.presentGiaddrAction")
  (list "stack.relay.interfaceMode" "broadcast.kind")
  (list "hegel.name" "backends.hegel.host")
  (list "hegel.service.port" "backends.hegel.port") (list "hegel.service.port" "routes.hegel.port")
  (list "tink.server.name" "backends.tink.host")
  (list "tink.server.service.port" "backends.tink.port") (list "tink.server.service.port" "routes.tink.port")
  (list "smee.name" "backends.smee.host")
  (list "smee.http.port" "backends.smee.httpPort") (list "smee.http.port" "routes.smee-http.port")
  (list "smee.tftp.port" "backends.smee.tftpPort") (list "smee.tftp.port" "routes.smee-tftp.port")
  (list "smee.syslog.port" "backends.smee.syslogPort") (list "smee.syslog.port" "routes.smee-syslog.port") -}}
{{- range $moves -}}
{{- $from := index . 0 -}}
{{- $to := index . 1 -}}
{{- $value := include "stack.dig" (dict "in" $.Values "path" $from) | fromYaml -}}
{{- if $value.found -}}
{{- include "stack.put" (dict "in" $v "path" $to "value" $value.value) -}}
{{- $mapped = append $mapped (printf "%s -> %s" $from $to) -}}
{{- end -}}
{{- end -}}

{{- /* Values that mean something else here. */ -}}
{{- $strategy := dig "deployment" "strategy" dict $old -}}
{{- if eq (len (keys $strategy)) 1 -}}
{{- /* The former default. Kubernetes' own details of it would run two listeners on one interface. */ -}}
{{- $strategy = ternary dict $strategy (eq (toString $strategy.type) "RollingUpdate") -}}
{{- end -}}
{{- if $strategy -}}
{{- $_ := set $v "updateStrategy" $strategy -}}
{{- $mapped = append $mapped "stack.deployment.strategy -> updateStrategy" -}}
{{- end -}}
{{- $service := $old.service | default dict -}}
{{- if and (hasKey $service "enabled") (not $service.enabled) -}}
{{- $_ := set $v.service "enabled" false -}}
{{- $_ := set $v.broadcast "provider" "hostNetwork" -}}
{{- $mapped = append $mapped "stack.service.enabled=false -> service.enabled=false, broadcast.provider=hostNetwork" -}}
{{- end -}}
{{- $relay := $old.relay | default dict -}}
{{- $deaf := and (hasKey $relay "listenBroadcastTraffic") (not $relay.listenBroadcastTraffic) -}}
{{- $hears := and $v.relay.enabled (not $deaf) -}}
{{- if and $relay.sourceInterface $hears -}}
{{- $_ := set $v.broadcast "parents" (list $relay.sourceInterface) -}}
{{- $mapped = append $mapped "stack.relay.sourceInterface -> broadcast.parents" -}}
{{- else if $relay.sourceInterface -}}
{{- /* It was the interface to listen on, and said nothing where nobody did. */ -}}
{{- $ignored = append $ignored (printf "stack.relay.sourceInterface: nobody listens there, since stack.relay.%s is false" (ternary "listenBroadcastTraffic" "enabled" $deaf)) -}}
{{- end -}}
{{- if $deaf -}}
{{- $_ := set $v.broadcast "provider" "none" -}}
{{- $mapped = append $mapped "stack.relay.listenBroadcastTraffic=false -> broadcast.provider=none" -}}
{{- end -}}
{{- $hook := $old.hook | default dict -}}
{{- if $hook.port -}}
{{- include "stack.put" (dict "in" $v "path" "routes.files.port" "value" $hook.port) -}}
{{- $mapped = append $mapped "stack.hook.port -> routes.files.port" -}}
{{- end -}}
{{- if $hook.downloadURL -}}
{{- $set := dict "name" "hook" "url" $hook.downloadURL -}}
{{- range $key := list "arch" "extension" "kernelVersion" -}}
{{- with get $hook $key -}}
{{- /* 5.10 without quotes is the number 5.1. */ -}}
{{- $_ := set $set $key (ternary "5.10" (toString .) (eq (toString .) "5.1")) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $v.files "fetch" (dict "sets" (list $set)) -}}
{{- $mapped = append $mapped "stack.hook.downloadURL, arch, extension, kernelVersion -> files.fetch" -}}
{{- end -}}
{{- $persistence := $hook.persistence | default dict -}}
{{- if $persistence.existingClaim -}}
{{- $_ := set $v.files.volume "type" "existingClaim" -}}
{{- $_ := set $v.files.volume "existingClaim" $persistence.existingClaim -}}
{{- $mapped = append $mapped "stack.hook.persistence.existingClaim -> files.volume" -}}
{{- end -}}
{{- $single := $old.singleNodeClusterConfig | default dict -}}
{{- if $single.controlPlaneTolerationsEnabled -}}
{{- $taint := dict "key" "node-role.kubernetes.io/control-plane" "operator" "Exists" "effect" "NoSchedule" -}}
{{- $_ := set $v "tolerations" (append $v.tolerations $taint) -}}
{{- $workers := dict "matchExpressions" (list (dict "key" "node-role.kubernetes.io/control-plane" "operator" "DoesNotExist")) -}}
{{- $preferred := list (dict "weight" ($single.nodeAffinityWeight | default 1) "preference" $workers) -}}
{{- $nodes := dict "nodeAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" $preferred) -}}
{{- $_ := set $v "affinity" (mergeOverwrite $nodes $v.affinity) -}}
{{- $mapped = append $mapped "stack.singleNodeClusterConfig -> tolerations, affinity" -}}
{{- end -}}
{{- $smee := .Values.smee | default dict -}}
{{- if or $smee.hostNetwork (and (hasKey $smee "deploy") (not $smee.deploy)) -}}
{{- range list "smee-http" "smee-tftp" "smee-syslog" -}}
{{- include "stack.put" (dict "in" $v "path" (printf "routes.%s.enabled" .) "value" false) -}}
{{- end -}}
{{- $mapped = append $mapped "smee.hostNetwork, smee.deploy -> routes smee-http, smee-tftp and smee-syslog are off: machines ask Smee's own address" -}}
{{- end -}}
{{- if $old -}}
{{- $_ := set $v.broadcast "removeLeftovers" true -}}
{{- end -}}

{{- /* What has no place any more. */ -}}
{{- if hasKey $old "kubevip" -}}
{{- $ignored = append $ignored "stack.kubevip: this chart brings no load balancer; install kube-vip by its own chart (docs/chart.md), or the Service gets no address" -}}
{{- end -}}
{{- if or $old.image $relay.image $relay.initImage $hook.image -}}
{{- $ignored = append $ignored "stack.image, stack.relay.image, stack.relay.initImage, stack.hook.image: the programs are this project's own (image.*)" -}}
{{- end -}}
{{- if $old.selector -}}
{{- $ignored = append $ignored "stack.selector: the pods have this chart's labels" -}}
{{- end -}}
{{- if $persistence.localPersistentVolume -}}
{{- $ignored = append $ignored "stack.hook.persistence.localPersistentVolume: a directory of one node; choose files.volume.type" -}}
{{- end -}}
{{- if or $relay.name $hook.name -}}
{{- $ignored = append $ignored "stack.relay.name, stack.hook.name: the containers are called after their programs" -}}
{{- end -}}
{{- range list "rufio" "smee" "hegel" "tink" -}}
{{- if get $.Values . -}}
{{- $ignored = append $ignored (printf "%s.*, but for names and ports: this chart does not install it" .) -}}
{{- end -}}
{{- end -}}

{{- $off := and (hasKey $old "enabled") (not $old.enabled) -}}
{{- merge (dict "mapped" $mapped "ignored" $ignored "off" $off) $v | toYaml -}}
{{- end -}}

{{/* A value by its path, as YAML: found and value. Null and nothing count as not set. */}}
{{- define "stack.dig" -}}
{{- $at := .in -}}
{{- $found := true -}}
{{- range splitList "." .path -}}
{{- if and $found (kindIs "map" $at) (hasKey $at .) -}}
{{- $at = get $at . -}}
{{- else -}}
{{- $found = false -}}
{{- end -}}
{{- end -}}
{{- if and $found (or (kindIs "bool" $at) (not (empty $at))) -}}
{{- dict "found" true "value" $at | toYaml -}}
{{- else -}}
{{- dict "found" false | toYaml -}}
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
