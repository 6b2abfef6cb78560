// Command bench-relay measures dhcp-relay against its peers; see the package test/e2e/bench/relay.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/relay"
	"github.com/tinkerbell/stack/test/e2e/bench/report"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintf(os.Stderr, "bench-relay: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 {
		switch args[0] {
		case "generate":
			return generate(args[1:], stdout)
		case "echo":
			return echo(args[1:], stdout)
		}
	}
	flags := flag.NewFlagSet("bench-relay", flag.ContinueOnError)
	flags.SetOutput(stderr)
	o := relay.Options{Log: stderr, Builds: map[string]string{}}
	flags.StringVar(&o.Relay, "relay", "build/bin/dhcp-relay", "path of dhcp-relay")
	flags.StringVar(&o.Directory, "peers", "build/bench/peers", "directory for the peers' packages")
	flags.IntVar(&o.Runs, "runs", 5, "measurements of each case with each candidate")
	flags.DurationVar(&o.Duration, "duration", 2*time.Second, "time of one measurement")
	cases := flags.String("cases", "", "cases to run, separated by commas; all if empty")
	candidates := flags.String("candidates", "", "candidates to measure, separated by commas; all if empty")
	const build = "name=path of another build of dhcp-relay to measure beside it; may be repeated"
	flags.Func("build", build, func(s string) error {
		name, path, found := strings.Cut(s, "=")
		if !found {
			return errors.New("want name=path")
		}
		o.Builds[name] = path
		return nil
	})
	flags.BoolVar(&o.Boots, "boots", false, "compare dhcp-relay with itself, telling of boots and not")
	differential := flags.Bool("differential", false, "compare what the candidates do, not how fast")
	out := flags.String("report", "build/bench/relay.json", "where the rows are written")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if *cases != "" {
		o.Cases = strings.Split(*cases, ",")
	}
	if *candidates != "" {
		o.Candidates = strings.Split(*candidates, ",")
	}
	if *differential {
		comparisons, err := relay.Differential(o)
		if err != nil {
			return err
		}
		relay.DifferentialTable(stdout, comparisons, relay.Candidates)
		if comparisons, err = relay.Differential6(o); err != nil {
			return err
		}
		fmt.Fprintln(stdout)
		relay.DifferentialTable(stdout, comparisons, relay.Probed6)
		return nil
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	rows, err := relay.Run(ctx, o)
	if err != nil {
		return err
	}
	if err := report.Write(*out, rows); err != nil {
		return err
	}
	relay.Table(stdout, rows)
	fmt.Fprintln(stdout)
	relay.Chart(stdout, rows, "cpu_us_per_packet", "CPU microseconds per relayed packet")
	return nil
}

// generate is the load generator's process: interface, rate, duration, first xid, whether it is DHCPv6.
func generate(args []string, stdout io.Writer) error {
	if len(args) != 5 {
		return fmt.Errorf("generate: got %d arguments", len(args))
	}
	rate, err1 := strconv.Atoi(args[1])
	duration, err2 := time.ParseDuration(args[2])
	first, err3 := strconv.ParseUint(args[3], 10, 32)
	ipv6, err4 := strconv.ParseBool(args[4])
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	load := relay.Load{Interface: args[0], Rate: rate, Duration: duration, First: uint32(first), IPv6: ipv6}
	result, err := relay.Generate(load)
	if err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(result)
}

// echo is the server's process. It prints how many requests it received when it is told to end.
func echo(args []string, stdout io.Writer) error {
	if len(args) != 1 {
		return fmt.Errorf("echo: got %d arguments", len(args))
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	done := make(chan struct{})
	go func() {
		<-stop
		close(done)
	}()
	received, err := relay.Echo(net.ParseIP(args[0]), done)
	fmt.Fprintln(stdout, received)
	return err
}
