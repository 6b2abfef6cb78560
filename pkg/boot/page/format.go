package page

import (
	"fmt"
	"strconv"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// stepLabels are the steps as people read them.
var stepLabels = map[journal.Step]string{
	journal.DHCP: "DHCP", journal.Loader: "Loader", journal.IPXEDHCP: "iPXE DHCP", journal.Script: "Script",
	journal.Kernel: "Kernel", journal.Initramfs: "Initramfs", journal.OSDHCP: "OS DHCP", journal.Syslog: "Syslog",
	journal.Metadata: "Metadata", journal.Agent: "Agent", journal.Files: "Files", journal.Other: "Other",
}

// StepLabel is a step as people read it.
func StepLabel(s journal.Step) string {
	if label, ok := stepLabels[s]; ok {
		return label
	}
	return string(s)
}

// Duration is a duration as people read it: two units at most. The script of the page does the same.
func Duration(d time.Duration) string {
	seconds := int64(d / time.Second)
	switch {
	case d < 0:
		return "0 s"
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	case seconds < 60:
		return fmt.Sprintf("%d s", seconds)
	case seconds < 3600:
		return fmt.Sprintf("%d m %02d s", seconds/60, seconds%60)
	case seconds < 86400:
		return fmt.Sprintf("%d h %02d m", seconds/3600, seconds/60%60)
	}
	return fmt.Sprintf("%d d %d h", seconds/86400, seconds/3600%24)
}

// Age is a duration to now as people read it, in whole seconds so that it does not flicker.
func Age(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%d s", max(int64(d/time.Second), 0))
	}
	return Duration(d)
}

// Bytes is an amount as people read it; nothing for none.
func Bytes(n uint64) string {
	switch {
	case n == 0:
		return ""
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
}

// stamp is a time on a page: the browser's script keeps its age up to date, and shows it in another zone.
type stamp struct {
	ISO, Clock, Age string
}

func stampAt(t, now time.Time) stamp {
	t = t.UTC()
	return stamp{t.Format("2006-01-02T15:04:05.000Z"), t.Format("2 Jan 15:04:05"), Age(now.Sub(t))}
}
