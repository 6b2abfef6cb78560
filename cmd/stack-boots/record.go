package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/film"
	"github.com/tinkerbell/stack/pkg/boot/history"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// recording is a film that is being written of what a history holds.
type recording struct {
	encoder *json.Encoder
	title   film.Title
	self    []netip.Addr
	mac     [6]byte // of the machine; zero: of all
	own     map[netip.Addr]bool
	begin   time.Time
	err     error
}

// record is the command that writes what was heard, of a machine or of all, as a film (package film).
func record(_ context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	r := recording{encoder: json.NewEncoder(stdout), own: map[netip.Addr]bool{}}
	var c client
	flags := flag.NewFlagSet(name+" record", flag.ContinueOnError)
	flags.SetOutput(stderr)
	file := flags.String("history", getenv(prefix+"_HISTORY_FILE"), "the history: what "+prefix+"_HISTORY_FILE says")
	flags.StringVar(&r.title.Film, "name", "", "the film's name; default the machine")
	flags.StringVar(&r.title.Truth, "truth", "", "one sentence: what really happened")
	if err := c.parse(flags, args, false); err != nil {
		return err
	}
	if *file == "" {
		return exit{2, "no history: set " + prefix + "_HISTORY_FILE, or -history"}
	}
	if mac, err := net.ParseMAC(c.id); err == nil && len(mac) == 6 {
		r.mac = [6]byte(mac)
	} else if address, err := netip.ParseAddr(c.id); err == nil {
		r.own[address.Unmap()] = true
	} else if c.id != "" {
		return exit{2, fmt.Sprintf("%q: neither a MAC nor an address", c.id)}
	}
	r.title.Film = cmp.Or(r.title.Film, c.id, "all")
	for text := range strings.SplitSeq(getenv(prefix+"_PUBLIC_ADDRESSES"), ",") {
		if address, err := netip.ParseAddr(text); err == nil {
			r.self = append(r.self, address)
		}
	}
	// It is read twice rather than kept in memory: the running program has most of that.
	err := history.Read(*file, r.learn)
	if err == nil {
		err = history.Read(*file, func(e *boot.Event) { r.take(e, c.id == "") })
	}
	if err = cmp.Or(err, r.err); err == nil && r.begin.IsZero() {
		err = fmt.Errorf("nothing of it is in the history %s", *file)
	}
	return err
}

// learn notes the addresses that the machine had.
func (r *recording) learn(e *boot.Event) {
	if r.mac == ([6]byte{}) || journal.MACOf(e) != r.mac {
		return
	}
	for _, a := range [][16]byte{e.Client, e.Given, e.Requested} {
		if address := boot.Addr(a); address.IsValid() {
			r.own[address] = true
		}
	}
}

// take writes an event of the machine, or of what used its addresses.
func (r *recording) take(e *boot.Event, all bool) {
	mac := journal.MACOf(e)
	if r.err != nil || !all && (mac != r.mac || mac == [6]byte{}) && !r.own[boot.Addr(e.Client)] {
		return
	}
	if r.begin.IsZero() {
		r.begin = time.Unix(0, e.At).Truncate(time.Second)
		r.write(r.title)
		r.write(film.Line{Know: &film.Know{Self: r.self}})
	}
	r.write(film.Of(e, r.begin))
}

func (r *recording) write(line any) {
	if err := r.encoder.Encode(line); err != nil && r.err == nil {
		r.err = fmt.Errorf("failed to write the film: %w", err)
	}
}
