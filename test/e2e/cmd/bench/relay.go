package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/relay"
	"github.com/tinkerbell/stack/test/e2e/bench/report"
)

// measureRelay measures dhcp-relay against its peers. It runs this program again as load generator and as server.
func measureRelay(ctx context.Context, f *flags, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case relay.GenerateCommand:
			return generate(args[1:])
		case relay.EchoCommand:
			return echo(ctx, args[1:])
		}
	}
	o := relay.Options{Log: os.Stderr, Builds: map[string]string{}}
	f.StringVar(&o.Relay, "relay", "build/bin/dhcp-relay", "path of dhcp-relay")
	f.StringVar(&o.Directory, "peers", "build/bench/peers", "directory for the peers' packages")
	f.rounds(&o.Runs, 5, &o.Duration, 2*time.Second)
	f.list("cases", "cases to run, separated by commas; all if empty", &o.Cases)
	f.list("candidates", "candidates to measure, separated by commas; all if empty", &o.Candidates)
	const build = "name=path of another build of dhcp-relay to measure beside it; may be repeated"
	f.Func("build", build, func(s string) error {
		name, path, found := strings.Cut(s, "=")
		if !found {
			return errors.New("want name=path")
		}
		o.Builds[name] = path
		return nil
	})
	f.BoolVar(&o.Boots, "boots", false, "compare dhcp-relay with itself, telling of boots and not")
	differential := f.Bool("differential", false, "compare what the candidates do, not how fast")
	f.rows("build/bench/relay.json")
	_ = f.Parse(args)
	if *differential {
		return differ(o)
	}
	rows, err := relay.Run(ctx, o)
	if err != nil {
		return err
	}
	if err := report.Write(*f.out, rows); err != nil {
		return err
	}
	relay.Table(os.Stdout, rows)
	fmt.Println()
	relay.Chart(os.Stdout, rows, "cpu_us_per_packet", "CPU microseconds per relayed packet")
	return nil
}

// differ prints what the candidates do with requests of each family.
func differ(o relay.Options) error {
	comparisons, err := relay.Differential(o)
	if err != nil {
		return err
	}
	relay.DifferentialTable(os.Stdout, comparisons, relay.Candidates)
	if comparisons, err = relay.Differential6(o); err != nil {
		return err
	}
	fmt.Println()
	relay.DifferentialTable(os.Stdout, comparisons, relay.Probed6)
	return nil
}

// generate is the load generator's process: interface, rate, duration, first xid, whether it is DHCPv6.
func generate(args []string) error {
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
	return json.NewEncoder(os.Stdout).Encode(result)
}

// echo is the server's process. It prints how many requests it received when it is told to end.
func echo(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("echo: got %d arguments", len(args))
	}
	received, err := relay.Echo(net.ParseIP(args[0]), ctx.Done())
	fmt.Println(received)
	return err
}
