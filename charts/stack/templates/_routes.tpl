{{/* Hegel, Tink Server and Smee, each on its own. Takes v and namespace. */}}
{{- define "stack.preset.classic" -}}
{{- $b := .v.backends -}}
{{- $host := dict "namespace" .namespace "domain" .v.clusterDomain -}}
{{- $hegel := include "stack.host" (merge (dict "host" $b.hegel.host) $host) -}}
{{- $tink := include "stack.host" (merge (dict "host" $b.tink.host) $host) -}}
{{- $smee := include "stack.host" (merge (dict "host" $b.smee.host) $host) -}}
hegel: {protocol: http, port: 50061, backends: ["{{ $hegel }}:{{ $b.hegel.port }}"], paths: {deny: [/metrics, /healthz]}}
tink: {protocol: tcp, port: 42113, backends: ["{{ $tink }}:{{ $b.tink.port }}"]}
smee-http: {protocol: http, port: 7171, backends: ["{{ $smee }}:{{ $b.smee.httpPort }}"], paths: {deny: [/metrics, /healthcheck]}}
smee-tftp:
  protocol: tftp
  port: 69
  backends: ["{{ $smee }}:{{ $b.smee.tftpPort }}"]
  tftp: {loaders: ":{{ $b.smee.httpPort }}/ipxe/"}
smee-syslog: {protocol: syslog, port: 514, backends: ["{{ $smee }}:{{ $b.smee.syslogPort }}"]}
files: {protocol: files, port: 8080}
{{- end -}}

{{/* The one binary. */}}
{{- define "stack.preset.tinkerbell" -}}
{{- $b := .v.backends.tinkerbell -}}
{{- $host := include "stack.host" (dict "host" $b.host "namespace" .namespace "domain" .v.clusterDomain) -}}
{{- $paths := "{allow: [/ipxe, /iso, /tftp, /2009-04-04, /metadata, /tootles]}" }}
http: {protocol: http, port: 7080, backends: ["{{ $host }}:7080"], paths: {{ $paths }}}
{{- with $b.tls.secret }}
https:
  protocol: http
  port: 7443
  backends: ["{{ $host }}:{{ ternary 7443 7080 (not (empty $b.tls.caSecret)) }}"]
  optional: true
  paths: {{ $paths }}
  tls: {certificates: [{certificate: /secrets/{{ . }}/tls.crt, key: /secrets/{{ . }}/tls.key}]}
  {{- with $b.tls.caSecret }}
  backendTLS: {ca: /secrets/{{ . }}/ca.crt, name: {{ $b.tls.name | default (trimSuffix "." $host) | quote }}}
  {{- end }}
{{- end }}
grpc: {protocol: tcp, port: 42113, backends: ["{{ $host }}:42113"]}
tftp:
  protocol: tftp
  port: 69
  backends: ["{{ $host }}:69"]
  tftp: {loaders: ":7080/ipxe/binary/"}
syslog: {protocol: syslog, port: 514, backends: ["{{ $host }}:514"]}
ssh: {protocol: tcp, port: 2222, backends: ["{{ $host }}:2222"], optional: true}
files: {protocol: files, port: 7173}
{{- end -}}

{{/* The one binary before 0.23, whose Smee and Tootles had HTTP ports of their own. */}}
{{- define "stack.preset.tinkerbell-0.22" -}}
{{- $b := .v.backends.tinkerbell -}}
{{- $host := include "stack.host" (dict "host" $b.host "namespace" .namespace "domain" .v.clusterDomain) -}}
http: {protocol: http, port: 7171, backends: ["{{ $host }}:7171"], paths: {deny: [/metrics, /healthcheck]}}
metadata: {protocol: http, port: 7172, backends: ["{{ $host }}:{{ $b.tootlesPort }}"], paths: {deny: [/metrics, /healthz]}}
grpc: {protocol: tcp, port: 42113, backends: ["{{ $host }}:42113"]}
tftp: {protocol: tftp, port: 69, backends: ["{{ $host }}:69"]}
syslog: {protocol: syslog, port: 514, backends: ["{{ $host }}:514"]}
ssh: {protocol: tcp, port: 2222, backends: ["{{ $host }}:2222"], optional: true}
files: {protocol: files, port: 7173}
{{- end -}}

{{- define "stack.preset.none" -}}
{}
{{- end -}}

{{/*
Everything that templates need, as JSON: the effective values (stack.values) and
  ports       of the Service and the pod: [{name, port, protocol, route, service, kind}]
  table       the proxy's routes file
  listeners   names of the relay's listeners
  servers     of the relay
  services    namespaces of the EndpointSlices that the proxy watches
  hardware    namespaces of the Hardware objects that it watches
*/}}
{{- define "stack.effective" -}}
{{- /* All templates of a render have the same values, so that it is worked out once. */ -}}
{{- if not (hasKey .Values "effective") }}{{ $_ := set .Values "effective" (include "stack.workOut" .) }}{{ end -}}
{{- .Values.effective -}}
{{- end -}}

{{- define "stack.workOut" -}}
{{- $v := include "stack.values" . | fromJson -}}
{{- range $program := list $v.proxy $v.relay -}}
{{- /* The node's network is the machines', too. */ -}}
{{- if and (eq $v.broadcast.provider "hostNetwork") (not $program.adminAddress) }}{{ $_ := set $program "adminAddress" "127.0.0.1" }}{{ end -}}
{{- end -}}
{{- include "stack.check" (dict "v" $v "root" .) -}}
{{- $namespace := $v.backends.namespace | default (include "stack.namespace" .) -}}
{{- $preset := include (printf "stack.preset.%s" $v.preset) (dict "v" $v "namespace" $namespace) | fromYaml -}}
{{- if and (not (hasKey $preset "files")) (hasKey $v.routes "files") -}}
{{- $preset = set $preset "files" (dict "protocol" "files") -}}
{{- end -}}
{{- $routes := mergeOverwrite $preset $v.routes -}}
{{- $tls := $v.backends.tinkerbell.tls -}}
{{- if and (eq $v.preset "tinkerbell") $tls.secret -}}
{{- $_ := set $v.proxy "secrets" (concat $v.proxy.secrets (list $tls.secret $tls.caSecret) | compact | uniq) -}}
{{- end -}}
{{- $taken := dict (printf "%v/TCP" $v.proxy.adminPort) (list (dict "what" "the proxy's admin port" "away" "proxy.adminPort to another")) -}}
{{- if and $v.loadBalancer.enabled (eq $v.broadcast.provider "hostNetwork") -}}
{{- $key := printf "%v/TCP" $v.loadBalancer.adminPort -}}
{{- if or (hasKey $taken $key) (and $v.relay.enabled (eq (int $v.relay.adminPort) (int $v.loadBalancer.adminPort))) }}{{ include "stack.refuse" (dict "v" $v "text" (printf "loadBalancer.adminPort is %v, which another program on the node's network has: set loadBalancer.adminPort to another" $v.loadBalancer.adminPort)) }}{{ end -}}
{{- $_ := set $taken $key (list (dict "what" "stack-lb's admin port" "away" "loadBalancer.adminPort to another")) -}}
{{- end -}}
{{- $ports := list -}}
{{- $table := list -}}
{{- $services := list -}}
{{- $names := list "admin-proxy" "admin-relay" -}}
{{- $listed := dict -}}
{{- if $v.relay.enabled -}}
{{- $key := printf "%v/TCP" $v.relay.adminPort -}}
{{- if hasKey $taken $key }}{{ include "stack.refuse" (dict "v" $v "text" (printf "relay.adminPort and proxy.adminPort are both %v: both programs share the pod's network, so set one of relay.adminPort and proxy.adminPort to another" $v.relay.adminPort)) }}{{ end -}}
{{- $_ := set $taken $key (list (dict "what" "the relay's admin port" "away" "relay.adminPort to another")) -}}
{{- $_ := set $taken "67/UDP" (list (dict "what" "the DHCP relay" "away" "relay.enabled=false")) -}}
{{- $ports = append $ports (dict "name" "dhcp" "port" 67 "protocol" "UDP" "route" "dhcp" "service" true "listed" true "kind" "dhcp") -}}
{{- $names = append $names "dhcp" -}}
{{- if $v.dhcpv6.enabled -}}
{{- $_ := set $taken "547/UDP" (list (dict "what" "the DHCP relay" "away" "dhcpv6.enabled=false")) -}}
{{- $ports = append $ports (dict "name" "dhcpv6" "port" 547 "protocol" "UDP" "route" "dhcpv6" "service" true "listed" true "kind" "dhcpv6") -}}
{{- $names = append $names "dhcpv6" -}}
{{- end -}}
{{- end -}}
{{- range $name, $route := $routes -}}
{{- if has $name $names -}}
{{- $owner := ternary "the DHCP relay's" (printf "%s's admin" (ternary "the proxy" "the relay" (eq $name "admin-proxy"))) (has $name (list "dhcp" "dhcpv6")) -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "routes.%s is called as %s port is: call the route otherwise" $name $owner)) -}}
{{- end -}}
{{- end -}}
{{- $names = concat $names (keys $routes) -}}
{{- range $name, $route := $routes -}}
{{- $enabled := true -}}
{{- if hasKey $route "enabled" }}{{ $enabled = $route.enabled }}{{ end -}}
{{- if and (eq (toString $route.protocol) "files") (not $v.files.enabled) }}{{ $enabled = false }}{{ end -}}
{{- if $enabled -}}
{{- if and (not $route.protocol) (eq $name "https") (eq $v.preset "tinkerbell") -}}
{{- include "stack.refuse" (dict "v" $v "text" "routes.https is set, and preset tinkerbell has that route only with a certificate: set backends.tinkerbell.tls.secret, or leave routes.https out") -}}
{{- end -}}
{{- if not $route.protocol -}}
{{- include "stack.refuse" (dict "v" $v "text" (printf "routes.%s has no protocol and is none of preset %s: set routes.%s.protocol to tcp, http, grpc, tftp, syslog, udp or files" $name $v.preset $name)) -}}
{{- end -}}
{{- $listen := $route.listen | default (list $route.port | compact) -}}
{{- if not $listen }}{{ include "stack.refuse" (dict "v" $v "text" (printf "routes.%s has no port: set routes.%s.port" $name $name)) }}{{ end -}}
{{- if ne $route.protocol "files" -}}
{{- if not $route.backends }}{{ include "stack.refuse" (dict "v" $v "text" (printf "routes.%s has no backend: set routes.%s.backends to a list of host:port" $name $name)) }}{{ end -}}
{{- range $route.backends -}}
{{- if hasPrefix ":" . }}{{ include "stack.refuse" (dict "v" $v "text" (printf "preset %s has route %s, whose backend has no host: set backends.%s.host, or routes.%s.enabled=false" $v.preset $name (ternary (splitList "-" $name | first) "tinkerbell" (eq $v.preset "classic")) $name)) }}{{ end -}}
{{- if hasPrefix "service:" . -}}
{{- $from := trimPrefix "service:" . -}}
{{- if not (regexMatch "^([^/:]+/)?[^/:]+:[^/:]+$" $from) }}{{ include "stack.refuse" (dict "v" $v "text" (printf "routes.%s.backends has %s, which is no Service: write it as service:NAMESPACE/NAME:PORT" $name .)) }}{{ end -}}
{{- $services = append $services (ternary (first (splitList "/" $from)) (include "stack.namespace" $) (contains "/" $from)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "stack.checkRoute" (dict "v" $v "name" $name "route" $route) -}}
{{- $network := ternary "UDP" "TCP" (has $route.protocol (list "tftp" "syslog" "udp")) -}}
{{- $own := dict "name" $name "route" $route "user" (get $v.routes $name | default dict) "protocol" $route.protocol -}}
{{- $_ := set $own "portKey" (printf "routes.%s.%s" $name (ternary "listen" "port" (hasKey $route "listen"))) -}}
{{- range $i, $each := $listen -}}
{{- $port := regexFind "[0-9]+$" (toString $each) -}}
{{- $key := printf "%s/%s" $port $network -}}
{{- $shared := hasKey $taken $key -}}
{{- if $shared }}{{ include "stack.share" (dict "v" $v "own" $own "others" (get $taken $key) "port" $key) }}{{ end -}}
{{- $_ := set $taken $key (append (get $taken $key | default list) $own) -}}
{{- $host := $route.hosts | default "" -}}
{{- if kindIs "slice" $host }}{{ $host = first $host }}{{ end -}}
{{- $host = $host | replace "*" "probe" -}}
{{- /* What "helm test" asks for: a path that reaches the backend. */ -}}
{{- $path := dig "paths" "allow" "" $route | default "" -}}
{{- if kindIs "slice" $path }}{{ $path = first $path }}{{ end -}}
{{- $service := true -}}
{{- if hasKey $route "service" }}{{ $service = $route.service }}{{ end -}}
{{- $portName := $name -}}
{{- if gt $i 0 -}}
{{- $portName = printf "%s-%s" ($name | trunc 9 | trimSuffix "-") $port -}}
{{- if has $portName $names }}{{ $portName = printf "%s%s-%s" (lower $network) $port (sha256sum $name | trunc 4) }}{{ end -}}
{{- $names = append $names $portName -}}
{{- end -}}
{{- $first := and $service (not (hasKey $listed $key)) -}}
{{- if $first }}{{ $_ := set $listed $key $portName }}{{ end -}}
{{- $ports = append $ports (dict "listed" $first "name" $portName "port" (int $port) "protocol" $network "route" $name "service" $service "shared" $shared "kind" $route.protocol "tls" (not (empty $route.tls)) "host" $host "path" (trimPrefix "/" $path)) -}}
{{- end -}}
{{- $row := merge (dict "name" $name "listen" $listen) (omit $route "enabled" "port" "service") -}}
{{- if and (hasKey $row "paths") (empty (compact (list $row.paths.allow $row.paths.deny))) }}{{ $_ := unset $row "paths" }}{{ end -}}
{{- if and (not (hasKey $row "optional")) (not $v.probes.requireBackends) }}{{ $_ := set $row "optional" true }}{{ end -}}
{{- $table = append $table $row -}}
{{- end -}}
{{- end -}}
{{- $asked := list -}}
{{- range $ports }}{{ $asked = concat $asked (list .name .route) }}{{ end -}}
{{- range $v.test.except }}
{{- if not (has . $asked) }}{{ include "stack.refuse" (dict "v" $v "text" (printf "test.except names route %s, and there is none: name one of %s" . ($asked | uniq | join ", "))) }}{{ end -}}
{{- end -}}
{{- $nodes := dict -}}
{{- range $name, $node := $v.service.nodePorts -}}
{{- $own := dict -}}
{{- range $ports }}{{ if eq .name $name }}{{ $own = . }}{{ end }}{{ end -}}
{{- if not $own }}{{ include "stack.refuse" (dict "v" $v "text" (printf "service.nodePorts names %s, and no port is called so: name one of %s" $name (include "stack.portNames" $ports))) }}{{ end -}}
{{- if not $own.listed }}{{ include "stack.refuse" (dict "v" $v "text" (printf "service.nodePorts names %s, whose port the Service has not, or has under another name: name one of %s" $name (include "stack.portNames" $ports))) }}{{ end -}}
{{- $key := printf "%v/%s" $node $own.protocol -}}
{{- if hasKey $nodes $key }}{{ include "stack.refuse" (dict "v" $v "text" (printf "service.nodePorts.%s and service.nodePorts.%s are both %s: set one of them to another" (get $nodes $key) $name $key)) }}{{ end -}}
{{- $_ := set $nodes $key $name -}}
{{- end -}}
{{- if and $v.service.nodePorts (eq $v.service.type "ClusterIP") }}{{ include "stack.refuse" (dict "v" $v "text" "service.nodePorts is set and service.type is ClusterIP: set service.type to NodePort or LoadBalancer, or leave service.nodePorts out") }}{{ end -}}
{{- if not $ports }}{{ include "stack.refuse" (dict "v" $v "text" (printf "nothing to serve: no route of preset %s or routes is enabled, and relay.enabled is false: set preset, routes or relay.enabled" $v.preset)) }}{{ end -}}

{{- $listeners := list -}}
{{- if and $v.relay.enabled (eq $v.broadcast.provider "init") -}}
{{- range $i := until (max 1 (len $v.broadcast.parents) | int) }}{{ $listeners = append $listeners (printf "%s%d" $v.broadcast.kind $i) }}{{ end -}}
{{- else if and $v.relay.enabled (eq $v.broadcast.provider "multus") -}}
{{- range $i, $network := $v.broadcast.multus.networks }}{{ $listeners = append $listeners ($network.interface | default (printf "net%d" (add1 $i))) }}{{ end -}}
{{- else if and $v.relay.enabled (eq $v.broadcast.provider "hostNetwork") -}}
{{- $listeners = $v.broadcast.parents -}}
{{- end -}}
{{- range $i, $listener := $listeners -}}
{{- range $j, $other := $listeners -}}
{{- if and (lt $i $j) (eq $listener $other) }}{{ include "stack.refuse" (dict "v" $v "text" (printf "broadcast.multus.networks[%d] and broadcast.multus.networks[%d] are both interface %s: set broadcast.multus.networks[%d].interface to another" $i $j $listener $j)) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $servers := $v.relay.servers -}}
{{- if and $v.relay.enabled (not $servers) -}}
{{- if eq $v.preset "none" }}{{ include "stack.refuse" (dict "v" $v "text" "the relay has no server: preset=none names none, so set relay.servers (or relay.enabled=false)") }}{{ end -}}
{{- $backend := get $v.backends (ternary "smee" "tinkerbell" (eq $v.preset "classic")) -}}
{{- if not $backend.host }}{{ include "stack.refuse" (dict "v" $v "text" (printf "the relay has no server: set backends.%s.host or relay.servers" (ternary "smee" "tinkerbell" (eq $v.preset "classic")))) }}{{ end -}}
{{- $host := include "stack.host" (dict "host" $backend.host "namespace" $namespace "domain" $v.clusterDomain) -}}
{{- $port := $backend.dhcpPort | default 67 | int -}}
{{- $servers = list (ternary $host (printf "%s:%v" $host $port) (eq $port 67)) -}}
{{- end -}}
{{- $hardware := list -}}
{{- if and $v.boots.enabled $v.boots.kubernetes }}{{ $hardware = $v.boots.namespaces | default (list $namespace) | uniq | sortAlpha }}{{ end -}}
{{- merge (dict "ports" $ports "table" $table "listeners" $listeners "servers" $servers "services" ($services | uniq | sortAlpha) "hardware" $hardware) $v | toJson -}}
{{- end -}}

{{- define "stack.portNames" -}}
{{- $names := list -}}
{{- range . }}{{ if .listed }}{{ $names = append $names .name }}{{ end }}{{ end -}}
{{- join ", " $names -}}
{{- end -}}
