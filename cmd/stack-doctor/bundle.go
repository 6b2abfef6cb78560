package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/doctor"
	"github.com/tinkerbell/stack/pkg/doctor/bundle"
)

// pack writes the bundle of a run.
func pack(s *settings, report *doctor.Report, frames *bundle.Recorder) error {
	var text strings.Builder
	if err := write(&text, report); err != nil {
		return err
	}
	return bundle.Write(s.Bundle, bundle.Content{
		Report: report, Text: text.String(), Versions: versions(), Logs: s.Logs, Frames: frames,
		Settings: map[string]string{
			"interface": s.Interface, "mac": s.MAC, "arch": s.Arch, "service": s.Service, "ca": s.CA,
			"ipv6": fmt.Sprint(s.IPv6), "timeout": s.Timeout.String(),
		},
	})
}

// versions are those of the program and of the system that it runs on.
func versions() string {
	var b strings.Builder
	if info, ok := debug.ReadBuildInfo(); ok {
		fmt.Fprintf(&b, "stack-doctor %s\n", info.Main.Version)
		for _, setting := range info.Settings {
			if strings.HasPrefix(setting.Key, "vcs.") {
				fmt.Fprintf(&b, "%s %s\n", setting.Key, setting.Value)
			}
		}
	}
	fmt.Fprintf(&b, "%s %s/%s\n", runtime.Version(), runtime.GOOS, runtime.GOARCH)
	var system unix.Utsname
	if unix.Uname(&system) == nil {
		fmt.Fprintf(&b, "%s %s\n", unix.ByteSliceToString(system.Sysname[:]), unix.ByteSliceToString(system.Release[:]))
	}
	return b.String()
}
