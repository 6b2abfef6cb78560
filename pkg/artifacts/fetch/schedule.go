package fetch

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"time"
)

// untilCheck is how long it is from now to the next regular check. Checks are at multiples of CheckEvery of the wall
// clock, from a phase that follows from what is fetched: so several replicas of one installation look at a release at
// the same time, whenever each of them began, and serve another one for no longer than their downloads take; and all
// installations do not ask a release's server in the same second.
func (c *Config) untilCheck(now time.Time) time.Duration {
	every := c.CheckEvery.D()
	if every <= 0 {
		return 0
	}
	text, err := json.Marshal(c.Sets)
	if err != nil {
		return every // what can be read from YAML can be written
	}
	sum := sha256.Sum256(text)
	phase := time.Duration(binary.BigEndian.Uint64(sum[:]) % uint64(every))
	return every - time.Duration((now.UnixNano()-int64(phase))%int64(every))
}
