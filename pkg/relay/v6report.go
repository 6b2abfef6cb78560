package relay

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/mmsg"
)

// reportEvery is the time between two reports of a listener's group to switches, which forget it after 260 s (RFC 3810
// section 9.4). The pod's IP layer cannot answer their queries, since it receives nothing from a listener.
const reportEvery = time.Minute

// report reports the group to switches until ctx is done: when the listener opens, and every minute.
func (v *vlan) report(ctx context.Context) error {
	out := mmsg.NewSendBatch(false, func(errno unix.Errno) {
		v.relay.logger.Debug("failed to report group to switches", "listener", v.name, "error", errno.Error())
	})
	b := make([]byte, 0, frame.ReportLen)
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-v.openings:
		case <-tick.C:
		}
		if open := v.Opened(); open != nil {
			b = frame.AppendReport(b[:0], open.MAC, open.Info.local, frame.AllRelays())
			out.AddFrame(b, open.Index)
			open.Send(out)
		}
	}
}
