{{- define "annals.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that select the pods of one part. Takes the root and the part's name. */}}
{{- define "annals.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{- define "annals.labels" -}}
{{ include "annals.selector" . }}
app.kubernetes.io/version: {{ .root.Values.image.tag | default .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "annals.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The name of a service account. Takes its values and the name that it has by default. */}}
{{- define "annals.account" -}}
{{- if .account.create -}}{{ .account.name | default .name }}{{- else -}}{{ .account.name | default "default" }}{{- end -}}
{{- end -}}

{{/* What the config files of a writer and of a replica set have in common, as YAML. Takes the root and a part. */}}
{{- define "annals.config" -}}
store: {{ required "store is required: s3://BUCKET/PREFIX?region=R" .root.Values.store | quote }}
listen: {{ printf ":%v" .root.Values.ports.http | quote }}
admin-listen: {{ printf ":%v" .root.Values.ports.admin | quote }}
shutdown-timeout: {{ .part.shutdownSeconds }}s
{{- if .root.Values.tokens.secret }}
tokens: /etc/annals/tokens/{{ .root.Values.tokens.key }}
{{- end }}
{{- if .root.Values.tls.secret }}
tls-cert: /etc/annals/tls/tls.crt
tls-key: /etc/annals/tls/tls.key
{{- if .root.Values.tls.clientCA }}
tls-client-ca: /etc/annals/tls/ca.crt
{{- end }}
{{- end }}
{{- if .part.cache.enabled }}
disk-cache: /var/cache/annals
disk-cache-bytes: {{ .part.cache.bytes }}
{{- end }}
{{- end -}}

{{/* The names that only a writer takes, and those that only a replica takes, of those that a config may have. A test asks the program. */}}
{{- define "annals.onlyOf" -}}
writer: [ack, append-timeout, body-limit, read-visibility, flush-interval, wal-object-bytes, memtable-bytes, max-unflushed-bytes,
  segment-interval, segment-bytes, segment-min-bytes, compaction, retention, retention-bytes, retention-check-interval, gc-interval, gc-grace,
  replicas, replicas-ca, replicas-cert, replicas-key, max-producers, max-state-bytes, forget-lost-state, on-fence]
replica: [poll-interval, tail-bytes]
{{- end -}}

{{/* A config file: the chart's own settings, under the values' config for all, under that of a part. What only the others
take, it leaves out of the one for all and refuses in the part's. Takes the root, own, config, where that is (at), and others. */}}
{{- define "annals.underValues" -}}
{{- $settings := .own -}}
{{- $foreign := get (include "annals.onlyOf" . | fromYaml) .others -}}
{{- range $name, $value := .root.Values.config }}{{ if not (has $name $foreign) }}{{ $_ := set $settings $name $value }}{{ end }}{{ end -}}
{{- range $name, $value := .config }}
{{- if has $name $foreign }}{{ fail (printf "%s: only a %s takes %s" $.at $.others $name) }}{{ end -}}
{{- $_ := set $settings $name $value -}}
{{- end -}}
{{- /* Helm reads on and off as booleans; the program wants the words. */}}
{{- range $name := list "compaction" "slow-log" -}}
{{- $value := get $settings $name -}}
{{- if kindIs "bool" $value }}{{ $_ := set $settings $name (ternary "on" "off" $value) }}{{ end -}}
{{- end -}}
{{- $settings | toYaml -}}
{{- end -}}

{{/* The writer's config file: what the chart must set, under what the values say. */}}
{{- define "annals.writerConfig" -}}
{{- $own := include "annals.config" (dict "root" . "part" .Values.writer) | fromYaml -}}
{{- $_ := set $own "on-fence" "stay" -}}
{{- if .Values.compactor.enabled }}{{ $_ := set $own "compaction" "off" }}{{ end -}}
{{- $urls := list -}}
{{- range .Values.replicas }}{{ $urls = append $urls (printf "http://%s-%s:%v" (include "annals.fullname" $) .name $.Values.ports.http) }}{{ end -}}
{{- if and $urls (not .Values.tls.secret) }}{{ $_ := set $own "replicas" (join "," $urls) }}{{ end -}}
{{- include "annals.underValues" (dict "root" . "own" $own "config" .Values.writer.config "at" "writer.config" "others" "replica") -}}
{{- end -}}

{{/* The config file of a replica set. Takes the root and the set. */}}
{{- define "annals.replicaConfig" -}}
{{- $own := include "annals.config" (dict "root" .root "part" .set) | fromYaml -}}
{{- $_ := set $own "replica" true -}}
{{- if .set.keyRange }}{{ $_ := set $own "key-range" .set.keyRange }}{{ end -}}
{{- include "annals.underValues" (dict "root" .root "own" $own "config" .set.config "at" (printf "config of replicas %s" .set.name) "others" "writer") -}}
{{- end -}}

{{/* The compactor's: the store, and what it must know as the writer does. */}}
{{- define "annals.compactorConfig" -}}
{{- $writer := include "annals.writerConfig" . | fromYaml -}}
{{- pick $writer "store" "segment-bytes" "retention" "log-level" "log-format" | toYaml -}}
{{- end -}}

{{/* A pod that serves. Takes the root, its values (part), name, config, account and component. */}}
{{- define "annals.server" -}}
metadata:
  labels:
    {{- include "annals.labels" (dict "root" .root "part" .component) | nindent 4 }}
  annotations:
    checksum/config: {{ .config | sha256sum }}
    {{- with .part.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ .account }}
  terminationGracePeriodSeconds: {{ add .part.shutdownSeconds 15 .drain }}
  {{- include "annals.place" (dict "root" .root "part" .part "component" .component) | nindent 2 }}
  containers:
    - name: annals
      image: {{ include "annals.image" .root }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      args: [serve, --config, /etc/annals/config/annals.yaml]
      {{- include "annals.confined" . | nindent 6 }}
      ports:
        - {name: http, containerPort: {{ .root.Values.ports.http }}}
        - {name: admin, containerPort: {{ .root.Values.ports.admin }}}
      # It is healthy while it recovers, however long that takes, and then ready.
      startupProbe:
        httpGet: {path: /-/healthy, port: admin}
        periodSeconds: 1
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /-/healthy, port: admin}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: /-/ready, port: admin}
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 2
      {{- if .drain }}
      # Until all who balance load know that the pod goes.
      lifecycle:
        preStop:
          sleep: {seconds: {{ .drain }}}
      {{- end }}
      resources:
        {{- toYaml .part.resources | nindent 8 }}
      volumeMounts:
        - {name: config, mountPath: /etc/annals/config, readOnly: true}
        {{- if .root.Values.tokens.secret }}
        - {name: tokens, mountPath: /etc/annals/tokens, readOnly: true}
        {{- end }}
        {{- if .root.Values.tls.secret }}
        - {name: tls, mountPath: /etc/annals/tls, readOnly: true}
        {{- end }}
        {{- if .part.cache.enabled }}
        - {name: cache, mountPath: /var/cache/annals}
        {{- end }}
  volumes:
    - name: config
      configMap: {name: {{ .name }}}
    {{- if .root.Values.tokens.secret }}
    - name: tokens
      secret: {secretName: {{ .root.Values.tokens.secret }}, defaultMode: 0440}
    {{- end }}
    {{- if .root.Values.tls.secret }}
    - name: tls
      secret: {secretName: {{ .root.Values.tls.secret }}, defaultMode: 0440}
    {{- end }}
    {{- if .part.cache.enabled }}
    - name: cache
      {{- if not .part.cache.storageClass }}
      emptyDir: {sizeLimit: {{ .part.cache.volumeSize }}}
      {{- else }}
      ephemeral:
        volumeClaimTemplate:
          spec:
            accessModes: [ReadWriteOnce]
            storageClassName: {{ .part.cache.storageClass }}
            resources: {requests: {storage: {{ .part.cache.volumeSize }}}}
      {{- end }}
    {{- end }}
{{- end -}}

{{/* Where a pod runs, and what it may not do there. */}}
{{- define "annals.place" -}}
enableServiceLinks: false
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- if gt (int (get .part "count" | default 1)) 1 }}
topologySpreadConstraints:
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "annals.selector" (dict "root" $.root "part" $.component) | nindent 8 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* The environment of a container, and what it may not do. */}}
{{- define "annals.confined" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- with .root.Values.credentialsSecret }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
{{- if or .part.goMemLimit .part.extraEnv }}
env:
  {{- with .part.goMemLimit }}
  - {name: GOMEMLIMIT, value: {{ . | quote }}}
  {{- end }}
  {{- with .part.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end -}}
