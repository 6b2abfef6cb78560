// Package consent has the rules by which the holder of a lease goes on using it while the API is away: every node
// that might take the lease consents, again and again, and takes nothing for as long. docs/design/consent.md has the
// argument, and the test of this package explores the rules exhaustively. It is pure: no clock, no socket, no API.
package consent

import "time"

// View is a version of a lease as a process has seen it.
type View struct {
	Holder string // an identity; empty is nobody
	// Released says that the last holder has withdrawn, and has said so in this version.
	Released bool
}

// Candidate is what one process has promised of one lease, and done to it. Times are those of the process's clock,
// which begins with the process. nil is a process that never consents. It is not safe for use by several goroutines.
type Candidate struct {
	promised time.Duration // until then the lease is neither acquired nor used
	using    time.Duration // until then this node may be using the lease
}

// Consent reports whether this process consents that the holder goes on, and if so promises neither to acquire the
// lease nor to use what it has acquired, for as long as the lease lasts. It does not consent where it has just
// started, since the process before it may have left the address on the node; where it may still use the lease
// itself; and where it knows of another holder. An acquisition that is under way is no obstacle: it is of no use any
// more when the promise ends.
func (c *Candidate) Consent(now, lease time.Duration, seen View, holder string) bool {
	if c == nil || now < lease || now < c.using || seen.Holder == "" || seen.Holder != holder {
		return false
	}
	c.promised = max(c.promised, now+lease)
	return true
}

// Wait is how long this process, which goes by self, may neither acquire the lease nor begin to use it. here says
// that the node has the address from a process before: then that one has promised nothing since it took it.
func (c *Candidate) Wait(now, lease time.Duration, seen View, self string, here bool) time.Duration {
	switch {
	case c == nil || seen.Released:
		return 0
	case seen.Holder == self && !here:
		return max(c.promised, lease) - now
	}
	return c.promised - now
}

// Freed ends what was promised to a holder that has withdrawn: the process is about to acquire the lease that this one
// has released, and the holder uses no consent after it has sent the release.
func (c *Candidate) Freed() {
	if c != nil {
		c.promised = 0
	}
}

// Uses is told until when this node may use the lease; a time that is over says that it has withdrawn.
func (c *Candidate) Uses(until time.Duration) {
	if c != nil {
		c.using = until
	}
}
