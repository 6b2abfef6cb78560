package admission

import "github.com/prometheus/client_golang/prometheus"

var (
	usedDesc = prometheus.NewDesc("stack_proxy_admission_used_bytes",
		"What the connections and requests of a route are charged: memory, and descriptors as memory.",
		[]string{"route"}, nil)
	roomDesc = prometheus.NewDesc("stack_proxy_admission_room_bytes",
		"What all connections and requests may be charged now; less than the limit while the container's memory is short.",
		nil, nil)
	limitDesc = prometheus.NewDesc("stack_proxy_admission_limit_bytes",
		"What all connections and requests may be charged at most.", nil, nil)
	evictedDesc = prometheus.NewDesc("stack_proxy_admission_evicted_total",
		"Connections and requests that were given up for others, or for the container's memory.", []string{"route"}, nil)
	refusedDesc = prometheus.NewDesc("stack_proxy_admission_refused_total",
		"Connections and requests for which there was no room, by reason.", []string{"route", "reason"}, nil)
)

// Describe implements prometheus.Collector.
func (a *Account) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{usedDesc, roomDesc, limitDesc, evictedDesc, refusedDesc} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (a *Account) Collect(to chan<- prometheus.Metric) {
	var all []prometheus.Metric
	add := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		all = append(all, prometheus.MustNewConstMetric(desc, kind, value, labels...))
	}
	a.mu.Lock()
	add(roomDesc, prometheus.GaugeValue, float64(a.room))
	add(limitDesc, prometheus.GaugeValue, float64(a.memory))
	for _, r := range a.routes {
		add(usedDesc, prometheus.GaugeValue, float64(r.used), r.name)
		add(evictedDesc, prometheus.CounterValue, float64(r.evicted), r.name)
		for why := Memory; why < refusals; why++ {
			add(refusedDesc, prometheus.CounterValue, float64(r.refused[why]), r.name, why.String())
		}
	}
	a.mu.Unlock()
	for _, m := range all {
		to <- m
	}
}
