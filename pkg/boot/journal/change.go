package journal

import "time"

// Change is what Options.Changed is told, from the recording goroutine: one of a step's end, another state or cause
// of a boot, and a boot's end. What it points to is the receiver's own: a copy.
type Change struct {
	At      time.Time   // by the events' clock
	Machine MachineView // without boots and lines
	Boot    BootView    // without steps
	Step    *StepView   // that ended, with its answers; nil where state or cause changed, or the boot ended
	Was     State       // the boot's state before; equal to Boot.State where another thing changed
	Over    bool        // the boot is over: booted, silent, replaced by the next boot, or forgotten
}
