package route

// removed are the fields that routes files once had, with what to do about each.
var removed = map[string]string{
	"routes[].limits.machines":    noQueue,
	"routes[].limits.queue":       noQueue,
	"routes[].limits.retryAgents": noQueue,
}

const noQueue = "leave it out: machines do not wait to be served, and limits.rate gives each the same share"
