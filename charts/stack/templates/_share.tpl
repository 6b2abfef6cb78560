{{/* Refuses a route's fields that its protocol has no use for. "stack-proxy check" looks deeper. Takes v, name and route. */}}
{{- define "stack.checkRoute" -}}
{{- $web := list "http" "grpc" "files" -}}
{{- $stream := prepend $web "tcp" -}}
{{- $datagrams := list "tftp" "syslog" "udp" -}}
{{- $forward := list "tcp" "http" "grpc" -}}
{{- $fields := dict "files" (list "files") "tftp" (list "tftp")
  "hosts" $web "tls" $web "jwt" $web "rewrite" (list "http" "files") "paths" $web "backendTLS" (list "http" "grpc")
  "trustedPrefixes" (list "http" "grpc") "accessLog" $web "proxyProtocol" $stream
  "backends" (concat $forward $datagrams) -}}
{{- range $field, $protocols := $fields -}}
{{- if and (get $.route $field) (not (has $.route.protocol $protocols)) -}}
{{- $of := printf "routes.%s" $.name -}}
{{- include "stack.refuse" (dict "v" $.v "text" (printf "%s.%s does not apply to protocol %s, only to %s: leave it out, or set %s.protocol to another" $of $field $.route.protocol (join ", " $protocols) $of)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
Refuses a route on a port that others have and it cannot share: routes of the web share one by hosts. Takes v, port, own:
the route, and others. Each is name, route, protocol, user (what the values say of it) and portKey, or what, away:
somebody else and how to have it go.
*/}}
{{- define "stack.share" -}}
{{- $own := .own -}}
{{- $web := list "http" "grpc" "files" -}}
{{- range $other := .others -}}
{{- if $other.what -}}
{{- include "stack.refuse" (dict "v" $.v "text" (printf "%s is %s, which %s has: set it to another, or set %s" $own.portKey $.port $other.what $other.away)) -}}
{{- end -}}
{{- $here := $own -}}
{{- $there := $other -}}
{{- if and (not (or $own.user.port $own.user.listen)) (or $other.user.port $other.user.listen) -}}
{{- /* The values moved the other one here; this one is a preset's. */ -}}
{{- $here = $other -}}
{{- $there = $own -}}
{{- end -}}
{{- $hosts := include "stack.hosts" $here.route.hosts | fromYamlArray -}}
{{- $theirs := include "stack.hosts" $there.route.hosts | fromYamlArray -}}
{{- if eq $own.name $other.name -}}
{{- include "stack.refuse" (dict "v" $.v "text" (printf "routes.%s.listen has port %s twice: name it once" $own.name $.port)) -}}
{{- else if not (and (has $own.protocol $web) (has $other.protocol $web)) -}}
{{- include "stack.refuse" (dict "v" $.v "text" (printf "%s is %s, which route %s has: set it, or %s, to another" $here.portKey $.port $there.name $there.portKey)) -}}
{{- else if and (not $here.route.hosts) (not $there.route.hosts) -}}
{{- include "stack.refuse" (dict "v" $.v "text" (printf "%s is %s, which route %s has: set it to another, or set routes.%s.hosts and routes.%s.hosts, by which routes share a port" $here.portKey $.port $there.name $here.name $there.name)) -}}
{{- else if ne (empty $here.route.tls) (empty $there.route.tls) -}}
{{- $with := ternary $there $here (empty $here.route.tls) -}}
{{- $without := ternary $here $there (empty $here.route.tls) -}}
{{- include "stack.refuse" (dict "v" $.v "text" (printf "routes.%s.tls is set and routes.%s.tls is not, and both have port %s: set both, or set %s to another" $with.name $without.name $.port $here.portKey)) -}}
{{- end -}}
{{- range $hosts -}}
{{- if has . $theirs -}}
{{- include "stack.refuse" (dict "v" $.v "text" (printf "routes.%s.hosts has %s, and so has routes.%s.hosts on the same port %s: name each host in one of them" $here.name . $there.name $.port)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Hosts as the proxy compares them; none is all. */}}
{{- define "stack.hosts" -}}
{{- $all := list -}}
{{- range (kindIs "slice" . | ternary . (list . | compact)) | default (list "*") -}}
{{- $all = append $all (lower . | trimSuffix ".") -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}
