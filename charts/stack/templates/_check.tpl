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

{{/* An IP address (or a prefix's) as eight numbers of 16 bits, separated by spaces; an IPv4 address is mapped into IPv6. */}}
{{- define "stack.groups" -}}
{{- $text := lower . -}}
{{- with regexFind "[0-9]+(\\.[0-9]+){3}$" $text -}}
{{- $q := splitList "." . -}}
{{- $hex := printf "%02x%02x:%02x%02x" (atoi (index $q 0)) (atoi (index $q 1)) (atoi (index $q 2)) (atoi (index $q 3)) -}}
{{- $text = ternary (printf "%s%s" (trimSuffix . $text) $hex) (printf "::ffff:%s" $hex) (contains ":" $text) -}}
{{- end -}}
{{- $sides := splitList "::" $text -}}
{{- $left := splitList ":" (first $sides) | compact -}}
{{- $right := ternary (splitList ":" (last $sides) | compact) list (gt (len $sides) 1) -}}
{{- $all := $left -}}
{{- range until (sub 8 (add (len $left) (len $right)) | int) }}{{ $all = append $all "0" }}{{ end -}}
{{- $numbers := list -}}
{{- range concat $all $right }}{{ $numbers = append $numbers (printf "0x%s" . | int64) }}{{ end -}}
{{- join " " $numbers -}}
{{- end -}}

{{/* A prefix's length, of IPv4 as of one that is mapped into IPv6. */}}
{{- define "stack.bits" -}}
{{- $bits := splitList "/" . | last | atoi -}}
{{- ternary $bits (add $bits 96) (contains ":" .) -}}
{{- end -}}

{{/* "true" where one of two addresses or prefixes, a and b, has the other in it. */}}
{{- define "stack.overlap" -}}
{{- $least := 128 -}}
{{- range list .a .b }}{{ if contains "/" . }}{{ $least = min $least (include "stack.bits" . | atoi) | int }}{{ end }}{{ end -}}
{{- $a := include "stack.groups" (splitList "/" .a | first) | splitList " " -}}
{{- $b := include "stack.groups" (splitList "/" .b | first) | splitList " " -}}
{{- $same := true -}}
{{- range $i := until 8 -}}
{{- $bits := min 16 (max 0 (sub $least (mul 16 $i))) | int -}}
{{- $of := index (list 65536 32768 16384 8192 4096 2048 1024 512 256 128 64 32 16 8 4 2 1) $bits -}}
{{- if ne (div (index $a $i) $of) (div (index $b $i) $of) }}{{ $same = false }}{{ end -}}
{{- end -}}
{{- $same -}}
{{- end -}}

{{/*
Refuses to believe those who are no proxies: a prefix that has the stack's own address or a machines' network in it, or half
of the world. Takes v, path and prefixes.
*/}}
{{- define "stack.checkTrusted" -}}
{{- $v := .v -}}
{{- $path := .path -}}
{{- $why := "so that a machine there could pass for any other, and read its metadata: name the outer proxy's own addresses, or leave it out" -}}
{{- range $prefix := .prefixes -}}
{{- if lt (include "stack.bits" $prefix | atoi) (ternary 16 104 (and (contains ":" $prefix) (not (hasPrefix "::ffff:" (lower $prefix))))) -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "%s has %s, which is nearly everybody, %s" $path $prefix $why)) -}}
{{- end -}}
{{- range list $v.publicIP $v.publicIPv6 | compact -}}
{{- if and (eq (include "stack.overlap" (dict "a" $prefix "b" .)) "true") -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "%s has %s, in which the stack's own address %s lies, and most likely machines, %s" $path $prefix . $why)) -}}
{{- end -}}
{{- end -}}
{{- range concat $v.broadcast.parents $v.broadcast.linkAddresses $v.dhcpv6.linkAddresses | compact -}}
{{- if regexMatch "^([0-9.]+|[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)(/[0-9]+)?$" . -}}
{{- if and (not (regexMatch "^([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}$" .)) (eq (include "stack.overlap" (dict "a" $prefix "b" .)) "true") -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "%s has %s, and %s is of the machines' network, %s" $path $prefix . $why)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses what the schema cannot see: values that contradict each other. One sentence each, with what to set. */}}
{{- define "stack.check" -}}
{{- $v := .v -}}
{{- $b := $v.broadcast -}}
{{- if not $v.preset -}}
{{- $namespace := $v.backends.namespace | default (include "stack.namespace" .root) -}}
{{- fail (printf "preset is not set: set preset=tinkerbell for the one Tinkerbell binary (0.23 and later), tinkerbell-0.22 for 0.18 to 0.22, classic for Smee, Hegel and Tink Server each on its own, or none for routes of your own; kubectl -n %s get services shows which: tinkerbell with port 7080, tinkerbell with 7171, or smee and hegel" $namespace) -}}
{{- end -}}
{{- include "stack.checkLabels" . -}}
{{- include "stack.checkPod" . -}}
{{- include "stack.checkBoots" $v -}}
{{- include "stack.checkTrusted" (dict "v" $v "path" "trustedProxies" "prefixes" $v.trustedProxies) -}}
{{- range $name, $route := $v.routes -}}
{{- include "stack.checkTrusted" (dict "v" $v "path" (printf "routes.%s.trustedPrefixes" $name) "prefixes" ($route.trustedPrefixes | default list)) -}}
{{- end -}}
{{- if and (eq $b.provider "hostNetwork") $v.relay.enabled (not $b.parents) (not $v.unheard) -}}
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
{{- if $v.dhcpv6.enabled -}}
{{- if not $v.relay.enabled -}}
{{- include "stack.refuse" (dict "v" $v "text" "dhcpv6.enabled is true and relay.enabled is false, and the relay is one program for both: set relay.enabled=true, or dhcpv6.enabled=false") -}}
{{- end -}}
{{- if and (eq $v.preset "classic") (not $v.dhcpv6.servers) (not $v.relay.servers) -}}
{{- include "stack.refuse" (dict "v" $v "text" "dhcpv6.enabled is true and Smee, the DHCP server of preset classic, has no DHCPv6: set dhcpv6.servers") -}}
{{- end -}}
{{- if gt (len $v.dhcpv6.linkAddresses) (max 1 (len $b.parents) (len $b.multus.networks) | int) -}}
{{- include "stack.refuse" (dict "v" $v "text" "dhcpv6.linkAddresses has more addresses than there are listeners: give at most one for each of broadcast.parents or broadcast.multus.networks") -}}
{{- end -}}
{{- if and $v.dhcpv6.linkAddresses (eq $b.provider "none") -}}
{{- include "stack.refuse" (dict "v" $v "text" "dhcpv6.linkAddresses is set and broadcast.provider is none, so that there is no listener: leave dhcpv6.linkAddresses out") -}}
{{- end -}}
{{- range $v.dhcpv6.linkAddresses -}}
{{- if and . (not (contains ":" .)) }}{{ include "stack.refuse" (dict "v" $v "text" (printf "dhcpv6.linkAddresses take IPv6 addresses, and %s is none: set dhcpv6.linkAddresses to another" .)) }}{{ end -}}
{{- end -}}
{{- else if $v.relay.enabled -}}
{{- range concat $v.relay.trustedRelays $v.relay.trustedServers -}}
{{- if contains ":" . }}{{ include "stack.refuse" (dict "v" $v "text" (printf "%s is a prefix of IPv6, and DHCPv6 is not relayed: set dhcpv6.enabled=true, or take it out of relay.trustedRelays and relay.trustedServers" .)) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if gt (int $v.replicas) 1 -}}
{{- if and $v.relay.enabled $v.relay.upstreamAddress -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "relay.upstreamAddress is the address of one pod and replicas is %v: set relay.upstreamInterface, by which each pod takes its own, or replicas=1" $v.replicas)) -}}
{{- end -}}
{{- end -}}
{{- if and $v.relay.upstreamInterface $v.relay.upstreamAddress -}}
{{- include "stack.refuse" (dict "v" $v "text" "relay.upstreamInterface and relay.upstreamAddress both say what giaddr is: set one of relay.upstreamInterface and relay.upstreamAddress") -}}
{{- end -}}
{{- if and $b.parents (not $v.relay.enabled) (ne $b.provider "hostNetwork") -}}
{{- include "stack.refuse" (dict "v" $v "text" "broadcast.parents is set and relay.enabled is false, so nobody listens there: set relay.enabled=true, or leave broadcast.parents out") -}}
{{- end -}}
{{- $tls := $v.backends.tinkerbell.tls -}}
{{- if and $tls.secret (ne $v.preset "tinkerbell") -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "backends.tinkerbell.tls.secret is set, and preset %s has no HTTPS route: set preset=tinkerbell, or routes.https with a tls of its own" $v.preset)) -}}
{{- end -}}
{{- if and $tls.caSecret (not $tls.secret) -}}
{{- include "stack.refuse" (dict "v" $v "text" "backends.tinkerbell.tls.caSecret is set, and without a certificate there is no port 7443: set backends.tinkerbell.tls.secret, or leave backends.tinkerbell.tls.caSecret out") -}}
{{- end -}}
{{- if and $tls.name (not $tls.caSecret) -}}
{{- include "stack.refuse" (dict "v" $v "text" "backends.tinkerbell.tls.name is set, and Tinkerbell is not asked by TLS: set backends.tinkerbell.tls.caSecret, or leave backends.tinkerbell.tls.name out") -}}
{{- end -}}
{{- $drain := add (include "stack.seconds" $v.proxy.drainTimeout | int) (include "stack.seconds" $v.proxy.drainGrace | int) -}}
{{- if and $v.publicIP $v.service.ipFamilies (not (has (ternary "IPv6" "IPv4" (contains ":" $v.publicIP)) $v.service.ipFamilies)) -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "publicIP is %s and service.ipFamilies is %s: add the address's family to service.ipFamilies, or set publicIP to another" $v.publicIP (toJson $v.service.ipFamilies))) -}}
{{- end -}}
{{- if $v.publicIPv6 -}}
{{- if not (contains ":" $v.publicIPv6) -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "publicIPv6 is %s, which is no IPv6 address: set publicIP to it, and publicIPv6 to an IPv6 address" $v.publicIPv6)) -}}
{{- end -}}
{{- if or (not $v.publicIP) (contains ":" $v.publicIP) -}}
{{- include "stack.refuse" (dict "v" $v "text" "publicIPv6 stands beside an IPv4 address: set publicIP to that, or, where there is none, publicIP to the IPv6 address and leave publicIPv6 out") -}}
{{- end -}}
{{- if or (eq $v.service.ipFamilyPolicy "SingleStack") (eq (len $v.service.ipFamilies) 1) -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "publicIPv6 needs both families, and service.ipFamilyPolicy is %q, service.ipFamilies %s: leave them out, or publicIPv6" $v.service.ipFamilyPolicy (toJson $v.service.ipFamilies))) -}}
{{- end -}}
{{- $asked := include "stack.addressAnnotation" (dict "v" $v) -}}
{{- range include "stack.addressAnnotations" . | splitList " " -}}
{{- $addresses := get $v.service.annotations . -}}
{{- if and $addresses (not (has $v.publicIPv6 ($addresses | replace " " "" | splitList ","))) -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "publicIPv6 is %s and service.annotations asks for another address by %s=%s: have publicIPv6 among them, or leave one of the two out" $v.publicIPv6 . $addresses)) -}}
{{- end -}}
{{- if $addresses }}{{ $asked = "annotated" }}{{ end -}}
{{- end -}}
{{- if and $v.service.enabled (eq $v.service.type "LoadBalancer") (not $asked) -}}
{{- include "stack.refuse" (dict "v" $v "text" "publicIPv6 and publicIP are two addresses, and how your load balancer is asked for two is not known: set service.loadBalancerClass, or its annotation in service.annotations, such as metallb.io/loadBalancerIPs") -}}
{{- end -}}
{{- end -}}
{{- if and (eq $b.kind "ipvlan") (eq $b.mac "stable") -}}
{{- include "stack.refuse" (dict "v" $v "text" "broadcast.mac=stable is for macvlan, and an ipvlan has its parent's address: set broadcast.mac=random") -}}
{{- end -}}
{{- if and (eq $b.provider "hostNetwork") (gt (int $v.replicas) 1) (not $v.affinity) -}}
{{- include "stack.refuse" (dict "v" $v "text" "broadcast.provider=hostNetwork takes the node's ports, so two pods cannot share a node: set affinity to a podAntiAffinity, or replicas=1") -}}
{{- end -}}
{{- if and (eq $b.provider "hostNetwork") $v.updateStrategy (ne (toString $v.updateStrategy.type) "Recreate") (ne (toString (dig "rollingUpdate" "maxSurge" 1 $v.updateStrategy)) "0") -}}
{{- include "stack.refuse" (dict "v" $v "text" "broadcast.provider=hostNetwork takes the node's ports, and updateStrategy has the next pod come before the last one has gone: set updateStrategy.rollingUpdate.maxSurge to 0 or updateStrategy.type=Recreate, or leave updateStrategy out") -}}
{{- end -}}
{{- include "stack.checkAdmin" . -}}
{{- include "stack.checkLoadBalancer" . -}}
{{- if and (not $v.off) (not $v.service.enabled) (ne $b.provider "hostNetwork") (or (not $v.relay.enabled) (eq $b.provider "none")) (not $v.extraObjects) -}}
{{- include "stack.refuse" (dict "v" $v "text" "nothing leads to this pod: service.enabled is false, nothing listens for machines and the pod is not on the node's network: set service.enabled=true, or broadcast.provider=hostNetwork") -}}
{{- end -}}
{{- if has $v.publicIP (list "0.0.0.0" "::") -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "publicIP is %s, which is no address of anything: set publicIP to an IP address, or leave it out for the load balancer to choose" $v.publicIP)) -}}
{{- end -}}
{{- if and $v.service.enabled (eq $v.service.type "LoadBalancer") $v.service.loadBalancerClass (not $v.publicIP) -}}
{{- $asked := false -}}
{{- range concat (include "stack.addressAnnotations" . | splitList " ") (include "stack.poolAnnotations" . | splitList " ") }}{{ if hasKey $v.service.annotations . }}{{ $asked = true }}{{ end }}{{ end -}}
{{- if not $asked }}{{ include "stack.refuse" (dict "v" $v "text" (printf "service.loadBalancerClass is %s and no address is asked of it: set publicIP, or the class's annotation in service.annotations" $v.service.loadBalancerClass)) }}{{ end -}}
{{- end -}}
{{- if $v.publicIP -}}
{{- range include "stack.addressAnnotations" . | splitList " " -}}
{{- $addresses := get $v.service.annotations . -}}
{{- if and $addresses (not (has $v.publicIP ($addresses | replace " " "" | splitList ","))) -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "publicIP is %s and service.annotations asks for another address by %s=%s: have publicIP among them, or leave one of the two out" $v.publicIP . $addresses)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq (include "stack.service" (dict "root" .root "v" $v)) (printf "%s-admin" (include "stack.fullname" .root)) -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "service.name is %s, as the Service of the admin ports is called: set service.name to another" $v.service.name)) -}}
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
{{- if and (eq (len $v.service.ipFamilies) 2) (eq $v.service.ipFamilyPolicy "SingleStack") -}}
{{- include "stack.refuse" (dict "v" $v "text" "service.ipFamilies has two families and service.ipFamilyPolicy is SingleStack: set service.ipFamilyPolicy=PreferDualStack, or leave one of service.ipFamilies out") -}}
{{- end -}}
{{- include "stack.checkVersions" . -}}
{{- end -}}

{{/* Refuses admin ports that machines would reach, or nobody. Takes v. */}}
{{- define "stack.checkAdmin" -}}
{{- $v := .v -}}
{{- $away := list -}}
{{- range $name := ternary (list "proxy" "relay") (list "proxy") $v.relay.enabled -}}
{{- $own := get $v $name -}}
{{- $address := $own.adminAddress -}}
{{- if and $address (ne $address "pod") (ne $v.broadcast.provider "hostNetwork") -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "%s.adminAddress is %s, and only on the node's network is it known what address a pod has: leave %s.adminAddress out, or set broadcast.provider=hostNetwork" $name $address $name)) -}}
{{- end -}}
{{- if and $address (has $address (list $v.publicIP $v.publicIPv6)) -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "%s.adminAddress is %s, the address that machines use: set %s.adminAddress to one that they do not reach, or leave it out" $name $address $name)) -}}
{{- end -}}
{{- if and $address (ne $address "pod") (eq (include "stack.loopback" $own) "false") (gt (int $v.replicas) 1) -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "%s.adminAddress is the address of one node and replicas is %v: set %s.adminAddress=pod, which is each node's own, or replicas=1" $name $v.replicas $name)) -}}
{{- end -}}
{{- if eq (include "stack.loopback" $own) "true" }}{{ $away = append $away (printf "%s.adminAddress" $name) }}{{ end -}}
{{- end -}}
{{- if and $away $v.monitoring.podMonitor.enabled -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "monitoring.podMonitor.enabled is true, and Prometheus does not reach the node's loopback address: set %s to pod (the node's address) where machines do not reach that, or monitoring.podMonitor.enabled=false" (join " and " $away))) -}}
{{- end -}}
{{- end -}}

{{/* Refuses what stack-lb does not start with, or would not announce. Takes v. */}}
{{- define "stack.checkLoadBalancer" -}}
{{- $v := .v -}}
{{- $lb := $v.loadBalancer -}}
{{- if $lb.enabled -}}
{{- if and $v.service.enabled (ne $v.service.type "LoadBalancer") -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "loadBalancer.enabled is true and service.type is %s: set service.type=LoadBalancer, or loadBalancer.enabled=false" $v.service.type)) -}}
{{- end -}}
{{- if and $v.service.enabled (ne $v.service.loadBalancerClass $lb.class) -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "loadBalancer.enabled is true and service.loadBalancerClass is %s, which is another load balancer's: leave service.loadBalancerClass out, or set loadBalancer.enabled=false" $v.service.loadBalancerClass)) -}}
{{- end -}}
{{- $lease := include "stack.milliseconds" $lb.leaseDuration | int64 -}}
{{- if lt $lease 3000 -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "loadBalancer.leaseDuration is %s and 3s is the least: set loadBalancer.leaseDuration to more" $lb.leaseDuration)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses what the cluster's version does not have. Takes v and root. */}}
{{- define "stack.checkVersions" -}}
{{- $v := .v -}}
{{- $version := .root.Capabilities.KubeVersion.Version -}}
{{- $init := and $v.relay.enabled (eq $v.broadcast.provider "init") -}}
{{- range list
  (list (and $init $v.broadcast.watch) "1.29" "broadcast.watch" "true" "broadcast.watch=false")
  (list (and $v.files.enabled (eq $v.files.volume.type "image")) "1.33" "files.volume.type" "image" "files.volume.type to another") -}}
{{- if and (index . 0) (not (semverCompare (printf ">=%s.0-0" (index . 1)) $version)) -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "%s=%s needs Kubernetes %s and this is %s (helm template takes --kube-version): set %s" (index . 2) (index . 3) (index . 1) $version (index . 4))) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses more memory for what stack-boots keeps than its container has: those who look take as much again. */}}
{{- define "stack.checkBoots" -}}
{{- $limit := dig "limits" "memory" "" (.boots.resources | default dict) -}}
{{- $bytes := include "stack.memlimit" $limit | trimSuffix "B" -}}
{{- $needs := add 64 (mul 3 (int64 .boots.memory)) -}}
{{- if and .boots.enabled $bytes (lt (mulf $bytes 1.12 | int64) (mul $needs 1000000)) -}}
{{- include "stack.refuse" (dict "v" . "text" (printf "boots.memory is %v MiB, and with those who look stack-boots takes %v: set boots.resources.limits.memory to %vMi or more (it is %s), or boots.memory to less" .boots.memory $needs $needs $limit)) -}}
{{- end -}}
{{- end -}}

{{/* Refuses labels by which the chart's own objects find each other. Takes v. */}}
{{- define "stack.checkLabels" -}}
{{- $v := .v -}}
{{- range $path, $labels := dict "commonLabels" $v.commonLabels "podLabels" $v.podLabels -}}
{{- range list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" -}}
{{- if hasKey $labels . }}{{ include "stack.refuse" (dict "v" $v "text" (printf "%s sets %s, by which the Service finds its pods: leave it out" $path .)) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses what would be twice in the pod. Takes v. */}}
{{- define "stack.checkPod" -}}
{{- $v := .v -}}
{{- $values := dict "containers" "extraContainers" "initContainers" "extraInitContainers" "volumes" "extraVolumes"
  "securityContext" "podSecurityContext" "nodeSelector" "nodeSelector" "tolerations" "tolerations" "affinity" "affinity"
  "topologySpreadConstraints" "topologySpreadConstraints" "imagePullSecrets" "imagePullSecrets"
  "priorityClassName" "priorityClassName" "serviceAccountName" "serviceAccount.name" "serviceAccount" "serviceAccount.name"
  "terminationGracePeriodSeconds" "proxy.drainTimeout" "hostNetwork" "broadcast.provider" "hostPID" "broadcast.provider" -}}
{{- range $key, $_ := $v.podSpec -}}
{{- with get $values $key }}{{ include "stack.refuse" (dict "v" $v "text" (printf "podSpec.%s is a value of its own: set %s in its place" $key .)) }}{{ end -}}
{{- end -}}
{{- $names := list "stack-proxy" -}}
{{- if $v.relay.enabled }}{{ $names = append $names "dhcp-relay" }}{{ end -}}
{{- if and $v.relay.enabled (eq $v.broadcast.provider "init") }}{{ $names = append $names "broadcast-init" }}{{ end -}}
{{- range $list := list "extraInitContainers" "extraContainers" -}}
{{- range $i, $each := get $v $list -}}
{{- if has $each.name $names }}{{ include "stack.refuse" (dict "v" $v "text" (printf "%s[%d].name is %s, which another container of the pod has: set it to another" $list $i $each.name)) }}{{ end -}}
{{- $names = append $names $each.name -}}
{{- end -}}
{{- end -}}
{{- $names = list "routes" -}}
{{- if $v.files.enabled }}{{ $names = append $names "files" }}{{ end -}}
{{- range $v.proxy.secrets }}{{ $names = append $names (include "stack.secretVolume" .) }}{{ end -}}
{{- range $i, $each := $v.extraVolumes -}}
{{- if has $each.name $names }}{{ include "stack.refuse" (dict "v" $v "text" (printf "extraVolumes[%d].name is %s, which another volume of the pod has: set it to another" $i $each.name)) }}{{ end -}}
{{- $names = append $names $each.name -}}
{{- end -}}
{{- $paths := list "/etc/stack-proxy" -}}
{{- if $v.files.enabled }}{{ $paths = append $paths "/files" }}{{ end -}}
{{- range $v.proxy.secrets }}{{ $paths = append $paths (printf "/secrets/%s" .) }}{{ end -}}
{{- range $i, $each := $v.proxy.extraVolumeMounts -}}
{{- $path := trimSuffix "/" $each.mountPath -}}
{{- if has $path $paths }}{{ include "stack.refuse" (dict "v" $v "text" (printf "proxy.extraVolumeMounts[%d].mountPath is %s, where something else is mounted: set it to another" $i $each.mountPath)) }}{{ end -}}
{{- if not (has $each.name $names) }}{{ include "stack.refuse" (dict "v" $v "text" (printf "proxy.extraVolumeMounts[%d].name is %s, and there is no such volume: add it to extraVolumes" $i $each.name)) }}{{ end -}}
{{- $paths = append $paths $path -}}
{{- end -}}
{{- range $program := list "proxy" "relay" "init" "loadBalancer" -}}
{{- $variables := list -}}
{{- range $i, $each := (get $v $program).extraEnv -}}
{{- if has $each.name $variables }}{{ include "stack.refuse" (dict "v" $v "text" (printf "%s.extraEnv[%d].name is %s, which another one has: name it once" $program $i $each.name)) }}{{ end -}}
{{- $variables = append $variables $each.name -}}
{{- end -}}
{{- end -}}
{{- end -}}
