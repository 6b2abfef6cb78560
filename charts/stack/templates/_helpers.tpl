{{/*
The release's full name: the release's own where it has the chart's in it. Services are called after it, so it has no dot
and begins with a letter; and it is short enough for what is put behind it.
*/}}
{{- define "stack.fullname" -}}
{{- $name := .Chart.Name -}}
{{- $full := printf "%s-%s" .Release.Name $name -}}
{{- if .Values.fullnameOverride -}}
{{- $full = .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- $full = .Release.Name -}}
{{- end -}}
{{- $short := $full | replace "." "-" -}}
{{- if regexMatch "^[0-9]" $short }}{{ $short = printf "stack-%s" $short }}{{ end -}}
{{- if gt (len $short) 53 }}{{ $short = printf "%s-%s" ($short | trunc 44 | trimSuffix "-") (sha256sum $full | trunc 8) }}{{ end -}}
{{- $short -}}
{{- end -}}

{{/* The namespace of all objects but the Roles for others' endpoints. */}}
{{- define "stack.namespace" -}}
{{- .Release.Namespace -}}
{{- end -}}

{{/* They are a Deployment's selector, which cannot be changed. */}}
{{- define "stack.releaseLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* The pods that serve. "helm test"'s pod is of the release and not one of them. */}}
{{- define "stack.selectorLabels" -}}
{{ include "stack.releaseLabels" . }}
app.kubernetes.io/component: proxy
{{- end -}}

{{/*
An object's metadata. Takes root, v and name, and namespace, labels and annotations, which may be left out, and cluster: of
an object that is in no namespace. Each label is there once: an object's own counts before commonLabels, and these before the
chart's.
*/}}
{{- define "stack.metadata" -}}
{{- $chart := dict
  "app.kubernetes.io/version" (.root.Chart.AppVersion | replace "+" "_")
  "app.kubernetes.io/part-of" "tinkerbell"
  "app.kubernetes.io/managed-by" .root.Release.Service
  "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") -}}
{{- $release := include "stack.releaseLabels" .root | fromYaml -}}
name: {{ .name | quote }}
{{- if not .cluster }}
namespace: {{ .namespace | default (include "stack.namespace" .root) | quote }}
{{- end }}
labels:
  {{- merge (dict) (.labels | default dict) $release .v.commonLabels $chart | toYaml | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) .v.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* A program's image. Takes v (effective values), root and program. */}}
{{- define "stack.image" -}}
{{- $name := printf "%s/%s" .v.image.repository .program -}}
{{- if .v.image.registry }}{{ $name = printf "%s/%s" .v.image.registry $name }}{{ end -}}
{{- $digest := get .v.image.digests .program -}}
{{- if $digest -}}
{{- printf "%s@%s" $name $digest -}}
{{- else -}}
{{- printf "%s:%s" $name (.v.image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* A duration such as 1m30s in whole seconds, rounded up. */}}
{{- define "stack.seconds" -}}
{{- ceil (divf (include "stack.milliseconds" . | float64) 1000) | int -}}
{{- end -}}

{{/* A duration in whole milliseconds, rounded up. */}}
{{- define "stack.milliseconds" -}}
{{- $total := 0.0 -}}
{{- range regexFindAll "[0-9.]+(ms|s|m|h)" . -1 -}}
{{- $unit := regexFind "[a-z]+$" . -}}
{{- $factor := get (dict "ms" 1.0 "s" 1000.0 "m" 60000.0 "h" 3600000.0) $unit -}}
{{- $total = addf $total (mulf (trimSuffix $unit . | float64) $factor) -}}
{{- end -}}
{{- ceil $total | int64 -}}
{{- end -}}

{{/* Nine tenths of a memory quantity, for GOMEMLIMIT; nothing where there is none. */}}
{{- define "stack.memlimit" -}}
{{- $text := toString . -}}
{{- if regexMatch "^[0-9]+(\\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?$" $text -}}
{{- $unit := regexFind "[A-Za-z]+$" $text -}}
{{- $factors := dict "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 -}}
{{- $factor := 1.0 -}}
{{- if $unit }}{{ $factor = get $factors $unit }}{{ end -}}
{{- printf "%dB" (mulf (trimSuffix $unit $text | float64) $factor 0.9 | int64) -}}
{{- end -}}
{{- end -}}

{{/* A DNS name for a host of the values: a bare one is a Service in the backends' namespace. */}}
{{- define "stack.host" -}}
{{- if contains ":" .host -}}
[{{ .host }}]
{{- else if or (contains "." .host) (not .host) -}}
{{ .host }}
{{- else -}}
{{ printf "%s.%s.svc.%s." .host .namespace .domain }}
{{- end -}}
{{- end -}}

{{/* What a container of ours may not do. Takes uid, and add: capabilities. */}}
{{- define "stack.securityContext" -}}
{{- $capabilities := dict "drop" (list "ALL") -}}
{{- if .add }}{{ $_ := set $capabilities "add" .add }}{{ end -}}
{{- dict "runAsUser" .uid "runAsGroup" .uid "runAsNonRoot" (ne (int .uid) 0) "allowPrivilegeEscalation" false
  "readOnlyRootFilesystem" true "privileged" false "capabilities" $capabilities | toYaml -}}
{{- end -}}

{{/* The relay's listeners, with the addresses that stand for them. Takes effective values. */}}
{{- define "stack.listeners" -}}
{{- $all := list -}}
{{- range $i, $name := .listeners -}}
{{- $link := "" -}}
{{- if lt $i (len $.broadcast.linkAddresses) }}{{ $link = index $.broadcast.linkAddresses $i }}{{ end -}}
{{- $all = append $all (ternary (printf "%s=%s" $name $link) $name (not (empty $link))) -}}
{{- end -}}
{{- join "," $all -}}
{{- end -}}

{{/* The link addresses of DHCPv6, by listener. Takes effective values. */}}
{{- define "stack.linkAddresses6" -}}
{{- $all := list -}}
{{- range $i, $address := .dhcpv6.linkAddresses -}}
{{- if and $address (lt $i (len $.listeners)) }}{{ $all = append $all (printf "%s=%s" (index $.listeners $i) $address) }}{{ end -}}
{{- end -}}
{{- join "," $all -}}
{{- end -}}

{{/* A volume's name for a Secret, whose own name may be longer and have dots. */}}
{{- define "stack.secretVolume" -}}
{{- printf "secret-%s" (. | replace "." "-" | trunc 40 | trimSuffix "-") -}}
{{- if or (contains "." .) (gt (len .) 40) }}{{ printf "-%s" (sha256sum . | trunc 8) }}{{ end -}}
{{- end -}}

{{/*
Where a program's admin port listens, for its settings. Takes its values: adminAddress ("pod" is the pod's own) and adminPort,
and dial: to be asked there from the same pod.
*/}}
{{- define "stack.admin" -}}
{{- $host := .adminAddress -}}
{{- if eq $host "pod" }}{{ $host = "[$(POD_IP)]" }}{{ else if contains ":" $host }}{{ $host = printf "[%s]" $host }}{{ end -}}
{{- printf "%s:%v" ($host | default (ternary "127.0.0.1" "" (not (empty .dial)))) .adminPort -}}
{{- end -}}

{{/* "true" where nobody but the node reaches a program's admin port. Takes its values. */}}
{{- define "stack.loopback" -}}
{{- or (hasPrefix "127." .adminAddress) (eq .adminAddress "::1") -}}
{{- end -}}

{{/* The probes of an admin port. Takes port: its name, and host, where it is not open at the pod's address. */}}
{{- define "stack.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ .port }}{{ with .host }}, host: {{ . | quote }}{{ end }}}
  periodSeconds: 1
  failureThreshold: 60
  timeoutSeconds: 3
readinessProbe:
  httpGet: {path: /readyz, port: {{ .port }}{{ with .host }}, host: {{ . | quote }}{{ end }}}
  periodSeconds: 5
  failureThreshold: 2
  timeoutSeconds: 3
livenessProbe:
  httpGet: {path: /healthz, port: {{ .port }}{{ with .host }}, host: {{ . | quote }}{{ end }}}
  periodSeconds: 10
  failureThreshold: 6
  timeoutSeconds: 3
{{- end -}}

{{/*
Variables. Takes rows: each a name, a value and perhaps where it comes from, and extra: the user's own, which count in place
of a row of the same name. What is empty or false is the program's default and left out.
*/}}
{{- define "stack.env" -}}
{{- $own := list -}}
{{- range .extra }}{{ $own = append $own .name }}{{ end -}}
{{- $lines := list -}}
{{- range .rows -}}
{{- if has (index . 0) $own -}}
{{- else if gt (len .) 2 -}}
{{- if index . 1 }}{{ $lines = append $lines (dict "name" (index . 0) "valueFrom" (index . 2)) }}{{ end -}}
{{- else if index . 1 -}}
{{- /* A large number is not to become 1e+06. */ -}}
{{- $lines = append $lines (dict "name" (index . 0) "value" (kindIs "float64" (index . 1) | ternary (index . 1 | toJson) (index . 1 | toString))) -}}
{{- end -}}
{{- end -}}
{{- concat $lines (.extra | default list) | toYaml -}}
{{- end -}}

{{/* Seconds until a pod is killed: what draining takes, and some. */}}
{{- define "stack.grace" -}}
{{- add (include "stack.seconds" .proxy.drainTimeout | int) (include "stack.seconds" .proxy.drainGrace | int) 10 -}}
{{- end -}}

{{/* The service account's name. Takes root and v. */}}
{{- define "stack.serviceAccount" -}}
{{- if .v.serviceAccount.name -}}
{{- .v.serviceAccount.name -}}
{{- else if or .v.serviceAccount.create .v.services -}}
{{- include "stack.fullname" .root -}}
{{- else -}}
default
{{- end -}}
{{- end -}}

{{/* stack-boots' name, which is that of all that it has. */}}
{{- define "stack.bootsName" -}}
{{- printf "%s-boots" (include "stack.fullname" .) -}}
{{- end -}}

{{/* The pod of stack-boots. */}}
{{- define "stack.bootsLabels" -}}
{{ include "stack.releaseLabels" . }}
app.kubernetes.io/component: boots
{{- end -}}

{{/* The volume with the key that stack-boots believes. Takes root and v. */}}
{{- define "stack.bootsKey" -}}
name: boots
secret:
  optional: true {{- /* what is shown never keeps a machine from booting */}}
  secretName: {{ .v.boots.keySecret | default (include "stack.bootsName" .root) | quote }}
  items: [{key: key, path: key}]
{{- end -}}

{{/* The pods of stack-lb. */}}
{{- define "stack.lbLabels" -}}
{{ include "stack.releaseLabels" . }}
app.kubernetes.io/component: load-balancer
{{- end -}}

{{/* What stack-lb needs of Services: what they ask for, where they are served, and what became of it. */}}
{{- define "stack.lbRules" -}}
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [services/status]
  {{- with .services }}
  resourceNames: {{ toJson . }}
  {{- end }}
  verbs: [update]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- end -}}

{{/*
The Leases of stack-lb by their names, as JSON: that of the status, and one for each address of this release's Service.
Empty where it announces other Services, too, or its addresses are not known here. Takes v.
*/}}
{{- define "stack.lbLeases" -}}
{{- $v := .v -}}
{{- $annotations := $v.service.annotations -}}
{{- $asked := get $annotations "stack-lb.tinkerbell.org/addresses" | default (list $v.publicIP $v.publicIPv6 | compact | join ",") -}}
{{- if and $asked $v.service.enabled (not $v.loadBalancer.services) (not $v.loadBalancer.classWide) -}}
{{- $names := list "stack-lb" -}}
{{- range splitList "," $asked -}}
{{- $ip := trim . | lower -}}
{{- if contains ":" $ip -}}
{{- $halves := splitList "::" $ip -}}
{{- $before := first $halves | splitList ":" | compact -}}
{{- $after := list -}}
{{- if gt (len $halves) 1 }}{{ $after = last $halves | splitList ":" | compact }}{{ end -}}
{{- $groups := list -}}
{{- range $before }}{{ $groups = append $groups (printf "0000%s" . | trunc -4) }}{{ end -}}
{{- range until (int (sub (sub 8 (len $before)) (len $after))) }}{{ $groups = append $groups "0000" }}{{ end -}}
{{- range $after }}{{ $groups = append $groups (printf "0000%s" . | trunc -4) }}{{ end -}}
{{- $ip = join "-" $groups -}}
{{- end -}}
{{- $names = append $names (printf "stack-lb-%s" (replace "." "-" $ip)) -}}
{{- end -}}
{{- toJson $names -}}
{{- end -}}
{{- end -}}

{{/* The Service's name. Takes root and v. */}}
{{- define "stack.service" -}}
{{- .v.service.name | default (include "stack.fullname" .root) -}}
{{- end -}}

{{/*
The Service's port of a route, for outer routes. Takes v, route, of: the key that names it, protocols: those that go through
there, and through: its name.
*/}}
{{- define "stack.routePort" -}}
{{- $found := "" -}}
{{- $protocol := "" -}}
{{- range .v.ports -}}
{{- if and (eq .route $.route) .service (not $found) }}{{ $found = toString .port }}{{ $protocol = .kind }}{{ end -}}
{{- end -}}
{{- if not $found }}{{ include "stack.refuse" (dict "v" .v "text" (printf "%s is %q, which is no route on the Service: name one of %s" .of .route (include "stack.routeNames" .v))) }}{{ end -}}
{{- if not (has $protocol .protocols) -}}
{{- $way := ternary (printf ", or set routes.%s.protocol" .route) "" (and (eq $protocol "tcp") (has "http" .protocols)) -}}
{{- include "stack.refuse" (dict "v" .v "text" (printf "%s is %q, whose protocol is %s, and %s takes %s: name another route%s" .of .route $protocol .through (join ", " .protocols) $way)) -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{- define "stack.routeNames" -}}
{{- $names := list -}}
{{- range .ports }}{{ if .service }}{{ $names = append $names .route }}{{ end }}{{ end -}}
{{- join ", " ($names | uniq) -}}
{{- end -}}

{{/* The annotations by which a Service asks for an address, and those that ask for one of a pool. */}}
{{- define "stack.addressAnnotations" -}}
metallb.io/loadBalancerIPs metallb.universe.tf/loadBalancerIPs kube-vip.io/loadbalancerIPs lbipam.cilium.io/ips io.cilium/lb-ipam-ips purelb.io/addresses stack-lb.tinkerbell.org/addresses
{{- end -}}
{{/*
The annotation by which the class's load balancer is asked for addresses. Cilium reads no other; two addresses do not fit
into loadBalancerIP, which takes one. Empty where loadBalancerIP does it, or nothing is known of the class. Takes v.
*/}}
{{- define "stack.addressAnnotation" -}}
{{- $class := .v.service.loadBalancerClass -}}
{{- if hasPrefix "io.cilium/" $class -}}
lbipam.cilium.io/ips
{{- else if .v.publicIPv6 -}}
{{- if hasPrefix "kube-vip.io/" $class -}}
kube-vip.io/loadbalancerIPs
{{- else if hasPrefix "purelb.io/" $class -}}
purelb.io/addresses
{{- else if hasPrefix "metallb" $class -}}
metallb.io/loadBalancerIPs
{{- else if or (eq $class "tinkerbell.org/stack-lb") (and .v.loadBalancer.enabled (eq $class .v.loadBalancer.class)) -}}
stack-lb.tinkerbell.org/addresses
{{- end -}}
{{- end -}}
{{- end -}}
{{- define "stack.poolAnnotations" -}}
metallb.io/address-pool metallb.universe.tf/address-pool purelb.io/service-group
{{- end -}}

{{/* The pod's tolerations, as JSON: the values', and how long it stays on a node that is gone. Takes the values. */}}
{{- define "stack.tolerations" -}}
{{- $all := .tolerations -}}
{{- if ge (int .leaveNodeAfterSeconds) 0 -}}
{{- range $key := list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable" -}}
{{- $told := false -}}
{{- range $.tolerations -}}
{{- if and (has (get . "key") (list $key "" nil)) (has (get . "effect") (list "NoExecute" "" nil)) }}{{ $told = true }}{{ end -}}
{{- end -}}
{{- if not $told }}{{ $all = append $all (dict "key" $key "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" (int $.leaveNodeAfterSeconds)) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- toJson $all -}}
{{- end -}}
