{{/* The release's full name: the release's own where it has the chart's in it. */}}
{{- define "stack.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "stack.releaseLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The pods that serve. "helm test"'s pod is of the release and not one of them. */}}
{{- define "stack.selectorLabels" -}}
{{ include "stack.releaseLabels" . }}
app.kubernetes.io/component: proxy
{{- end -}}

{{- define "stack.labels" -}}
{{ include "stack.releaseLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: tinkerbell
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* An object's metadata. Takes root, and name, namespace, labels and annotations, which may be left out. */}}
{{- define "stack.metadata" -}}
name: {{ .name }}
namespace: {{ .namespace | default .root.Release.Namespace }}
labels:
  {{- include "stack.labels" .root | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
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
{{- $total := 0.0 -}}
{{- range regexFindAll "[0-9.]+(ms|s|m|h)" . -1 -}}
{{- $unit := regexFind "[a-z]+$" . -}}
{{- $factor := get (dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0) $unit -}}
{{- $total = addf $total (mulf (trimSuffix $unit . | float64) $factor) -}}
{{- end -}}
{{- ceil $total | int -}}
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
runAsUser: {{ .uid }}
runAsGroup: {{ .uid }}
runAsNonRoot: {{ ne (int .uid) 0 }}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
privileged: false
capabilities:
  drop: [ALL]
  {{- with .add }}
  add: {{ toJson . }}
  {{- end }}
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

{{/* A volume's name for a Secret, whose own name may be longer and have dots. */}}
{{- define "stack.secretVolume" -}}
{{- printf "secret-%s" (. | replace "." "-" | trunc 40 | trimSuffix "-") -}}
{{- if or (contains "." .) (gt (len .) 40) }}{{ printf "-%s" (sha256sum . | trunc 8) }}{{ end -}}
{{- end -}}

{{/* The probes of an admin port. Takes v and port: its name. */}}
{{- define "stack.probes" -}}
readinessProbe:
  httpGet: {path: /readyz, port: {{ .port }}}
  periodSeconds: {{ .v.probes.readinessPeriodSeconds }}
  failureThreshold: {{ .v.probes.readinessFailureThreshold }}
  timeoutSeconds: {{ .v.probes.timeoutSeconds }}
livenessProbe:
  httpGet: {path: /healthz, port: {{ .port }}}
  periodSeconds: {{ .v.probes.livenessPeriodSeconds }}
  failureThreshold: {{ .v.probes.livenessFailureThreshold }}
  timeoutSeconds: {{ .v.probes.timeoutSeconds }}
{{- end -}}

{{/* Variables, of pairs of a name and a value. What is empty or false is the program's default and left out. */}}
{{- define "stack.env" -}}
{{- $lines := list -}}
{{- range . -}}
{{- if index . 1 -}}
{{- $lines = append $lines (printf "- {name: %s, value: %s}" (index . 0) (index . 1 | toString | quote)) -}}
{{- end -}}
{{- end -}}
{{- join "\n" $lines -}}
{{- end -}}

{{/* Seconds until a pod is killed: what draining takes, and some. */}}
{{- define "stack.grace" -}}
{{- if .terminationGracePeriodSeconds -}}
{{- .terminationGracePeriodSeconds -}}
{{- else -}}
{{- add (include "stack.seconds" .proxy.drainTimeout | int) (include "stack.seconds" .proxy.drainGrace | int) 10 -}}
{{- end -}}
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

{{/* The Service's name. Takes root and v. */}}
{{- define "stack.service" -}}
{{- .v.service.name | default (include "stack.fullname" .root) -}}
{{- end -}}

{{/* The Service's port of a route, for outer routes. Takes v, route, and of: who asks. */}}
{{- define "stack.routePort" -}}
{{- $found := "" -}}
{{- range .v.ports -}}
{{- if and (eq .route $.route) .service (not $found) }}{{ $found = toString .port }}{{ end -}}
{{- end -}}
{{- if not $found }}{{ include "stack.refuse" (dict "v" .v "text" (printf "%s is %q, which is no route on the Service: name one of %s" .of .route (include "stack.routeNames" .v))) }}{{ end -}}
{{- $found -}}
{{- end -}}

{{- define "stack.routeNames" -}}
{{- $names := list -}}
{{- range .ports }}{{ if .service }}{{ $names = append $names .route }}{{ end }}{{ end -}}
{{- join ", " ($names | uniq) -}}
{{- end -}}

{{/* What both kinds of monitor say of an endpoint. */}}
{{- define "stack.scrape" -}}
{{- with .interval -}}
interval: {{ . }}
{{- end }}
{{- with .metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
