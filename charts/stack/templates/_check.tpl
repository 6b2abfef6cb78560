{{/* Fails with text, and says which of the former chart's values are meant where it names what they became. Takes v, text. */}}
{{- define "stack.refuse" -}}
{{- $from := list -}}
{{- range .v.mapped -}}
{{- $pair := splitList " -> " . -}}
{{- range last $pair | splitList ", " -}}
{{- $to := splitList "=" . | first -}}
{{- if contains $to $.text }}{{ $from = append $from (printf "%s comes from %s" $to (first $pair)) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- fail (ternary (printf "%s (%s)" .text (join "; " $from)) .text (not (empty $from))) -}}
{{- end -}}

{{/* Refuses what the schema cannot see: values that contradict each other. One sentence each, with what to set. */}}
{{- define "stack.check" -}}
{{- $v := .v -}}
{{- $b := $v.broadcast -}}
{{- if and (eq $b.provider "hostNetwork") $v.relay.enabled (not $b.parents) -}}
{{- include "stack.refuse" (dict "v" $v "text" "broadcast.provider=hostNetwork listens on the node's own interfaces: set broadcast.parents to their names, such as [eno1]") -}}
{{- end -}}
{{- if eq $b.provider "hostNetwork" -}}
{{- range $b.parents -}}
{{- if not (regexMatch "^[^\\s/:]{1,15}$" .) }}{{ include "stack.refuse" (dict "v" $v "text" (printf "broadcast.provider=hostNetwork takes interface names, and %s is none: set broadcast.parents to names such as [eno1]" .)) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if and (eq $b.provider "multus") $v.relay.enabled (not $b.multus.networks) -}}
{{- include "stack.refuse" (dict "v" $v "text" "broadcast.provider=multus needs a network attachment: set broadcast.multus.networks, such as [{name: provisioning}]") -}}
{{- end -}}
{{- if and $b.multus.networks (ne $b.provider "multus") -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "broadcast.multus.networks is set and broadcast.provider is %s: set broadcast.provider=multus, or leave broadcast.multus.networks out" $b.provider)) -}}
{{- end -}}
{{- if and $b.parents (has $b.provider (list "multus" "none")) -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "broadcast.parents is set and broadcast.provider is %s, which has no use for it: set broadcast.provider=init, or leave broadcast.parents out" $b.provider)) -}}
{{- end -}}
{{- if gt (len $b.linkAddresses) (max 1 (len $b.parents) (len $b.multus.networks) | int) -}}
{{- include "stack.refuse" (dict "v" $v "text" "broadcast.linkAddresses has more addresses than there are listeners: give at most one for each of broadcast.parents or broadcast.multus.networks") -}}
{{- end -}}
{{- if and $v.relay.upstreamInterface $v.relay.upstreamAddress -}}
{{- include "stack.refuse" (dict "v" $v "text" "relay.upstreamInterface and relay.upstreamAddress both say what giaddr is: set one of relay.upstreamInterface and relay.upstreamAddress") -}}
{{- end -}}
{{- if and $b.parents (not $v.relay.enabled) (ne $b.provider "hostNetwork") -}}
{{- include "stack.refuse" (dict "v" $v "text" "broadcast.parents is set and relay.enabled is false, so nobody listens there: set relay.enabled=true, or leave broadcast.parents out") -}}
{{- end -}}
{{- $drain := add (include "stack.seconds" $v.proxy.drainTimeout | int) (include "stack.seconds" $v.proxy.drainGrace | int) -}}
{{- if and $v.terminationGracePeriodSeconds (lt (int $v.terminationGracePeriodSeconds) (int $drain)) -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "terminationGracePeriodSeconds is %v and draining takes up to %v s: set terminationGracePeriodSeconds to %v or more, or proxy.drainTimeout and proxy.drainGrace to less" $v.terminationGracePeriodSeconds $drain (add $drain 5))) -}}
{{- end -}}
{{- if and $v.publicIP $v.service.ipFamilies (not (has (ternary "IPv6" "IPv4" (contains ":" $v.publicIP)) $v.service.ipFamilies)) -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "publicIP is %s and service.ipFamilies is %s: add the address's family to service.ipFamilies, or set publicIP to another" $v.publicIP (toJson $v.service.ipFamilies))) -}}
{{- end -}}
{{- if and (eq $b.kind "ipvlan") (eq $b.mac "stable") -}}
{{- include "stack.refuse" (dict "v" $v "text" "broadcast.mac=stable is for macvlan, and an ipvlan has its parent's address: set broadcast.mac=random") -}}
{{- end -}}
{{- if and (eq $b.provider "hostNetwork") (gt (int $v.replicas) 1) (not $v.affinity) -}}
{{- include "stack.refuse" (dict "v" $v "text" "broadcast.provider=hostNetwork takes the node's ports, so two pods cannot share a node: set affinity to a podAntiAffinity, or replicas=1") -}}
{{- end -}}
{{- if and $v.service.enabled (eq $v.service.type "LoadBalancer") $v.service.loadBalancerClass (not $v.publicIP) -}}
{{- $asked := false -}}
{{- range $key, $_ := $v.service.annotations }}{{ if regexMatch "(?i)(ips?|pool|name)$" $key }}{{ $asked = true }}{{ end }}{{ end -}}
{{- if not $asked }}{{ include "stack.refuse" (dict "v" $v "text" (printf "service.loadBalancerClass is %s and no address is asked of it: set publicIP, or the class's annotation in service.annotations" $v.service.loadBalancerClass)) }}{{ end -}}
{{- end -}}
{{- if and $v.service.loadBalancerClass (ne $v.service.type "LoadBalancer") -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "service.loadBalancerClass is set and service.type is %s: set service.type=LoadBalancer, or leave service.loadBalancerClass out" $v.service.type)) -}}
{{- end -}}
{{- $volume := $v.files.volume -}}
{{- if and $v.files.enabled (eq $volume.type "existingClaim") (not $volume.existingClaim) -}}
{{- include "stack.refuse" (dict "v" $v "text" "files.volume.type=existingClaim needs files.volume.existingClaim: the claim's name") -}}
{{- end -}}
{{- if and $volume.existingClaim (ne $volume.type "existingClaim") -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "files.volume.existingClaim is set and files.volume.type is %s: set files.volume.type=existingClaim, or leave files.volume.existingClaim out" $volume.type)) -}}
{{- end -}}
{{- if and $v.files.fetch (not $v.files.fetch.sets) -}}
{{- include "stack.refuse" (dict "v" $v "text" "files.fetch has no sets: set files.fetch.sets, such as [{name: hook, url: https://...}]") -}}
{{- end -}}
{{- if and $v.files.fetch (eq $volume.type "image") -}}
{{- include "stack.refuse" (dict "v" $v "text" "files.fetch writes to the volume and files.volume.type=image is read-only: set files.volume.type to another, or leave files.fetch out") -}}
{{- end -}}
{{- if and $v.files.fetch $volume.subPath -}}
{{- include "stack.refuse" (dict "v" $v "text" "files.fetch serves the volume's current directory itself: leave files.volume.subPath out") -}}
{{- end -}}
{{- if and $v.files.enabled (eq $volume.type "image") (not $volume.image.reference) -}}
{{- include "stack.refuse" (dict "v" $v "text" "files.volume.type=image needs files.volume.image.reference: the image with the OS files") -}}
{{- end -}}
{{- if and $v.files.enabled (eq $volume.type "pvc") (gt (int $v.replicas) 1) (not (or (has "ReadWriteMany" $volume.pvc.accessModes) (has "ReadOnlyMany" $volume.pvc.accessModes))) -}}
{{- include "stack.refuse" (dict "v" $v "text" "replicas is more than 1 and files.volume.pvc.accessModes lets one node mount the claim: set files.volume.pvc.accessModes=[ReadWriteMany], files.volume.type to another, or replicas=1") -}}
{{- end -}}
{{- if and $v.monitoring.podMonitor.enabled $v.monitoring.serviceMonitor.enabled -}}
{{- include "stack.refuse" (dict "v" $v "text" "monitoring.podMonitor and monitoring.serviceMonitor are both enabled and would scrape everything twice: set the enabled of one of them to false") -}}
{{- end -}}
{{- if and (eq (len $v.service.ipFamilies) 2) (eq $v.service.ipFamilyPolicy "SingleStack") -}}
{{- include "stack.refuse" (dict "v" $v "text" "service.ipFamilies has two families and service.ipFamilyPolicy is SingleStack: set service.ipFamilyPolicy=PreferDualStack, or leave one of service.ipFamilies out") -}}
{{- end -}}
{{- end -}}
