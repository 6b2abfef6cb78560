package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/tinkerbell/stack/pkg/doctor"
)

// write is the result for people: what was asked and heard, then what is in the way.
func write(w io.Writer, r *doctor.Report) error {
	if len(r.Asked) > 0 {
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "asked\tof\theard\ts")
		for _, s := range r.Asked {
			fmt.Fprintf(table, "%s\t%s\t%s\t%.1f\n", s.Asked, s.Of, s.Heard, s.Took)
		}
		if err := table.Flush(); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	for _, f := range r.Findings {
		fmt.Fprintf(w, "%-7s  %s\n         %s\n", f.Severity, f.Name, f.Text)
		if f.Remedy != "" {
			fmt.Fprintf(w, "         -> %s\n", f.Remedy)
		}
	}
	verdict := [...]string{"nothing was found in the way", "a boot may fail", "machines do not boot",
		"it could not be looked at"}[r.Exit()]
	mac := r.MAC
	if r.MadeUp {
		mac += ", which no machine has"
	}
	if r.Exit() == doctor.Healthy {
		verdict += " (files were read in part)"
	}
	_, err := fmt.Fprintf(w, "%s: %s as %s (%s): %d frames sent, %.1f s\n", verdict, r.Interface, r.Arch, mac, r.Frames,
		r.Seconds)
	return err
}
