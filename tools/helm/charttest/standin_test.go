package charttest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

// site is where somebody follows a page, as its commands see it: a cluster without machines, a host, an Argo CD. The
// commands are links to the test's own binary. What they install is rendered by Helm from the charts themselves, but for
// the former chart, of which the names of objects are known.
type site struct {
	Tools, Programs, Root string // absolute
	Charts                map[string]string
	Releases              map[string]installed
	Objects               map[string]thing // by kind/name
	Calls                 []string
	file                  string
}

// installed is a Helm release, or what Argo CD made of an Application.
type installed struct{ Chart, Values string }

// thing is an object in the cluster.
type thing struct {
	Release string // whose annotations it has
	Gone    bool   // the release has it no more
	Keep    bool   // annotated, so that Helm leaves it
	Makes   string // the release that an Application makes
	Text    string // as it was rendered
}

// standIns are the commands of the pages that are not run as they are.
func standIns() map[string]func(*site, []string) error {
	return map[string]func(*site, []string) error{
		"git": (*site).git, "docker": (*site).nothing, "make": (*site).make, "helm": (*site).helm, "kubectl": (*site).kubectl,
		"sudo": (*site).sudo, "systemctl": (*site).systemctl, "journalctl": (*site).nothing, "curl": (*site).curl,
		"ip": (*site).ip, "vi": (*site).nothing, "checkpoint": (*site).checkpoint, "stack-boots": (*site).program,
		"stack-doctor": (*site).program, "ss": (*site).nothing, "eksctl": (*site).nothing, "scp": (*site).nothing,
		"ssh": (*site).nothing,
	}
}

// standIn plays the command by whose name this binary was called.
func standIn(name string) int {
	s := &site{file: os.Getenv("SITE")}
	one, err := os.Create(s.file + ".lock") // one command at a time: some stay in the background
	if err == nil {
		defer func() { _ = one.Close() }()
		err = unix.Flock(int(one.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	text, err := os.ReadFile(s.file)
	if err == nil {
		err = json.Unmarshal(text, s)
	}
	if err == nil {
		s.Calls = append(s.Calls, name+" "+strings.Join(os.Args[1:], " "))
		err = errors.Join(standIns()[name](s, os.Args[1:]), s.save(s.file))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s %s: %v\n", name, strings.Join(os.Args[1:], " "), err)
		return 1
	}
	return 0
}

func (s *site) save(path string) error {
	text, err := json.Marshal(s)
	return errors.Join(err, os.WriteFile(path, text, 0o600))
}

func (s *site) nothing([]string) error { return nil }

// checkpoint keeps the site as it is when the machine boots.
func (s *site) checkpoint([]string) error { return s.save(s.file + ".booted") }

// git clones this repository, and lets Argo CD see what is pushed.
func (s *site) git(args []string) error {
	if args[0] == "clone" {
		if err := os.MkdirAll("stack/build", 0o755); err != nil {
			return err
		}
		for _, name := range []string{"charts", "docs", "Makefile", "make"} {
			if err := os.Symlink(filepath.Join(s.Root, name), filepath.Join("stack", name)); err != nil {
				return err
			}
		}
		return nil
	}
	directory, rest := args[1], args[2:]
	switch rest[0] {
	case "add":
		_, err := os.Stat(filepath.Join(directory, rest[1]))
		return err
	case "rm":
		return os.Remove(filepath.Join(directory, rest[1]))
	case "push":
		files, err := filepath.Glob(directory + "/*.yaml")
		for _, file := range files {
			err = errors.Join(err, s.apply(file))
		}
		return err
	}
	return nil
}

// make has what the repository's has: the programs that its "build" builds, and a chart that was pushed.
func (s *site) make(args []string) error {
	switch args[0] {
	case "build":
		makefile, err := os.ReadFile("Makefile")
		if err != nil {
			return err
		}
		built := regexp.MustCompile(`(?m)^PROGRAMS := (.*)$`).FindSubmatch(makefile)
		for _, program := range strings.Fields(string(built[1])) {
			from, to := filepath.Join(s.Programs, program), filepath.Join("build/bin", program)
			if err := errors.Join(os.MkdirAll("build/bin", 0o755), os.Symlink(from, to)); err != nil {
				return err
			}
		}
		return nil
	case "publish":
		registry, ok := strings.CutPrefix(args[1], "REGISTRY=")
		if !ok || registry == "" {
			return errors.New("no REGISTRY")
		}
		s.Charts["oci://"+registry+"/charts/stack"] = filepath.Join(s.Root, "charts/stack")
		pushed := "Pushed: " + registry + "/charts/stack:1.0.0-0.git.1.gabc\nDigest: sha256:abc\n"
		return errors.Join(os.MkdirAll("build/release", 0o755), os.WriteFile("build/release/chart.txt", []byte(pushed), 0o600))
	}
	return errors.New("no such target")
}

// helm keeps releases as Helm does: it refuses objects of others unless it may take them, and removes what a release has
// no more unless it is annotated.
func (s *site) helm(args []string) error {
	verb, plain, flags := arguments(args)
	switch verb {
	case "list":
		for name := range s.Releases {
			fmt.Println(name)
		}
		return nil
	case "template":
		_, err := s.render(plain[0], plain[1], flags)
		return err
	case "show":
		if _, ok := s.Charts[plain[1]]; !ok {
			return fmt.Errorf("no chart %s", plain[1])
		}
		return nil
	}
	if verb == "get" {
		plain = plain[1:]
	}
	at, there := s.Releases[plain[0]]
	switch {
	case slices.Contains(flags, "--dry-run=client"):
		_, err := s.render(plain[0], plain[1], flags)
		fmt.Println("NOTES:")
		return err
	case verb == "install" && there:
		return errors.New("the release is there already")
	case verb != "install" && !there && !slices.Contains(flags, "--install"):
		return errors.New("no such release")
	case verb == "get":
		fmt.Print(at.Values)
		return nil
	case verb == "test":
		if len(s.of(plain[0], "helm.sh/hook")) == 0 {
			return errors.New("the release has no test")
		}
		return nil
	case verb == "uninstall":
		delete(s.Releases, plain[0])
		return s.replace(plain[0], nil, false)
	case slices.Contains(flags, "--reuse-values"):
		flags = append([]string{"-f", s.file + "." + plain[0]}, flags...)
		if err := os.WriteFile(s.file+"."+plain[0], []byte(at.Values), 0o600); err != nil {
			return err
		}
	}
	rendered, err := s.render(plain[0], plain[1], flags)
	if err != nil {
		return err
	}
	if !there {
		s.Releases[plain[0]] = installed{Chart: plain[1]}
	}
	return s.replace(plain[0], rendered, slices.Contains(flags, "--take-ownership"))
}

// arguments splits Helm's: the verb, what is no flag, and the flags with their values.
func arguments(args []string) (verb string, plain, flags []string) {
	for i := 1; i < len(args); i++ {
		switch args[i] {
		case "-n", "-f", "--set", "--version", "--timeout", "-o":
			flags = append(flags, args[i], args[i+1])
			i++
		default:
			if strings.HasPrefix(args[i], "-") {
				flags = append(flags, args[i])
			} else {
				plain = append(plain, args[i])
			}
		}
	}
	return args[0], plain, flags
}

// render is what a chart makes of flags: documents by kind/name.
func (s *site) render(release, chart string, flags []string) (map[string]string, error) {
	for i := 0; i < len(flags)-1; i++ {
		if flags[i] == "--version" && chart == modern && flags[i+1] != "v0.25.0" {
			return nil, fmt.Errorf("its version is v0.25.0, not %s", flags[i+1])
		}
	}
	directory, ok := s.Charts[chart]
	if !ok {
		return nil, fmt.Errorf("no chart %s", chart)
	}
	if directory == "" {
		return former(strings.Contains(strings.Join(flags, " "), "stack.enabled=false")), nil
	}
	var pass []string
	for i, flag := range flags {
		if flag == "-n" || flag == "-f" || flag == "--set" {
			pass = append(pass, flag, flags[i+1])
		}
	}
	pass = append([]string{"template", release, directory}, pass...)
	out, err := exec.Command(filepath.Join(s.Tools, "helm"), pass...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	all := map[string]string{}
	for _, document := range strings.Split(string(out), "\n---") {
		var o object
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			return nil, err
		}
		if len(o) > 0 {
			all[strings.ToLower(o.kind())+"/"+o.name()] = document
		}
	}
	return all, s.checkRoutes(all)
}

// checkRoutes has stack-proxy judge the routes.
func (s *site) checkRoutes(all map[string]string) error {
	for key, document := range all {
		var routes struct{ Data map[string]string }
		if !strings.HasPrefix(key, "configmap/") || yaml.Unmarshal([]byte(document), &routes) != nil {
			continue
		}
		if routes.Data["routes.yaml"] == "" {
			continue
		}
		cmd := exec.Command(filepath.Join(s.Programs, "stack-proxy"), "check", "-f", "/dev/stdin")
		cmd.Stdin = strings.NewReader(routes.Data["routes.yaml"])
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("stack-proxy check: %w: %s", err, out)
		}
	}
	return nil
}

// former are the objects of the former chart that the pages speak of.
func former(alone bool) map[string]string {
	all := map[string]string{
		"deployment/smee": "", "deployment/hegel": "", "deployment/tink-server": "", "deployment/rufio": "",
	}
	if !alone {
		for _, key := range []string{
			"daemonset/kube-vip", "serviceaccount/kube-vip", "clusterrole/kube-vip-role",
			"clusterrolebinding/kube-vip-rolebinding", "deployment/tink-stack",
		} {
			all[key] = ""
		}
		all["service/tink-stack"] = "spec: {type: LoadBalancer, loadBalancerIP: " + address + "}"
	}
	return all
}

// replace gives a release its objects.
func (s *site) replace(release string, rendered map[string]string, take bool) error {
	for key, o := range s.Objects {
		if _, stays := rendered[key]; o.Release != release || o.Gone || stays {
			continue
		}
		if o.Gone = true; o.Keep && rendered != nil { // an uninstall looks at the release's own annotations
			s.Objects[key] = o
		} else {
			delete(s.Objects, key)
		}
	}
	for key, text := range rendered {
		o, there := s.Objects[key]
		if there && o.Release != release && !take {
			return fmt.Errorf("%s is there, and of release %q", key, o.Release)
		}
		if strategy := "type: RollingUpdate"; strings.Contains(o.Text, strategy) && strings.Contains(text, "type: Recreate") {
			return fmt.Errorf("%s: may not be changed from %s (server-side apply)", key, strategy)
		}
		s.Objects[key] = thing{Release: release, Keep: o.Keep, Text: text}
	}
	return nil
}

// of are a release's objects that have a text in them.
func (s *site) of(release, text string) (keys []string) {
	for key, o := range s.Objects {
		if o.Release == release && strings.Contains(o.Text, text) {
			keys = append(keys, key)
		}
	}
	return keys
}

// kubectl knows the objects that there are.
func (s *site) kubectl(args []string) error {
	verb, plain, file, annotation := "", []string{}, "", ""
	for i := 0; i < len(args); i++ {
		switch {
		case args[i] == "--": // a command in a pod
			i = len(args)
		case args[i] == "-n" || args[i] == "-o":
			i++
		case args[i] == "-f":
			i++
			file = args[i]
		case strings.HasPrefix(args[i], "-"):
		case verb == "":
			verb = args[i]
		case verb == "annotate" && strings.Contains(args[i], "resource-policy"):
			annotation = args[i]
		case strings.HasPrefix(args[i], "9070:") || strings.Contains(args[i], "="):
		default:
			plain = append(plain, args[i])
		}
	}
	if verb == "apply" {
		return s.apply(file)
	}
	switch strings.Join(plain, " ") {
	case "nodes":
		fmt.Print("10.244.0.0/24 10.244.1.0/24")
		return nil
	case "ciliumnodes":
		fmt.Print("10.244.0.0/24 10.244.1.0/24")
		return nil
	case "bundles.anywhere.eks.amazonaws.com":
		fmt.Println("      uri: " + strings.TrimPrefix(eksa, "oci://") + ":0.6.2-eks-a-93")
		return nil
	}
	if verb == "delete" && slices.Contains(args, "deployment") {
		delete(s.Objects, strings.Join(plain, "/"))
		return nil
	}
	if verb == "get" && len(plain) == 2 || verb == "label" {
		plain = []string{plain[0] + "/" + plain[1]}
	}
	for _, name := range plain {
		kind, object, named := strings.Cut(name, "/")
		key := strings.TrimSuffix(kind, "s") + "/" + object
		if kind == "namespace" || !named || key == "daemonset/cilium" {
			continue
		}
		o, there := s.Objects[key]
		if !there {
			return fmt.Errorf("%s not found", name)
		}
		if annotation != "" {
			o.Keep = strings.HasSuffix(annotation, "=keep")
			s.Objects[key] = o
		}
		if verb == "delete" && strings.HasPrefix(key, "application/") {
			delete(s.Objects, key)
			delete(s.Releases, o.Makes)
			if err := s.replace(o.Makes, nil, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// apply takes a file of objects; Argo CD installs its Applications.
func (s *site) apply(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var o struct {
			Kind     string
			Metadata struct{ Name string }
			Spec     struct {
				Source struct {
					RepoURL, Chart, TargetRevision string
					Helm                           struct {
						ReleaseName  string
						ValueFiles   []string
						ValuesObject map[string]any
					}
				}
				Destination struct{ Namespace string }
			}
		}
		if err := yaml.Unmarshal(document, &o); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		s.Objects[strings.ToLower(o.Kind)+"/"+o.Metadata.Name] = thing{Text: string(document)}
		if o.Kind != "Application" {
			continue
		}
		source := o.Spec.Source
		s.Objects["application/"+o.Metadata.Name] = thing{Makes: source.Helm.ReleaseName, Text: string(document)}
		chart := "oci://" + source.RepoURL + "/" + source.Chart
		var flags []string
		for _, values := range source.Helm.ValueFiles {
			flags = append(flags, "-f", filepath.Join(s.Charts[chart], values))
		}
		values, err := yaml.Marshal(source.Helm.ValuesObject)
		if err != nil {
			return err
		}
		own := s.file + "." + o.Metadata.Name
		if err := os.WriteFile(own, values, 0o600); err != nil {
			return err
		}
		flags = append(flags, "-f", own, "-n", o.Spec.Destination.Namespace)
		if chart == modern {
			flags = append(flags, "--version", source.TargetRevision)
		} else if source.TargetRevision != "1.0.0-0.git.1.gabc" {
			return fmt.Errorf("no version %s of %s", source.TargetRevision, chart)
		}
		rendered, err := s.render(source.Helm.ReleaseName, chart, flags)
		if err != nil {
			return err
		}
		s.Releases[source.Helm.ReleaseName] = installed{Chart: chart}
		if err := s.replace(source.Helm.ReleaseName, rendered, true); err != nil {
			return err
		}
	}
	return nil
}

// sudo runs a command as root of the host, whose directories are in one of the test's.
func (s *site) sudo(args []string) error {
	host := filepath.Dir(s.file) + "/host"
	for i, arg := range args {
		if strings.HasPrefix(arg, "/") {
			args[i] = host + arg
			if strings.HasSuffix(arg, "/") {
				args[i] += "/"
				if err := os.MkdirAll(args[i], 0o755); err != nil {
					return err
				}
			}
		}
	}
	switch name := filepath.Base(args[0]); name {
	case "install":
		out, err := exec.Command("install", args[1:]...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	case "stack-doctor":
		return s.program(append([]string{args[0]}, args[1:]...))
	default:
		return standIns()[name](s, args[1:])
	}
}

// program checks that a program is there and has the flags or the verb; it is not run.
func (s *site) program(args []string) error {
	path, flags := filepath.Join(s.Programs, "stack-boots"), args
	if len(args) > 0 && strings.HasSuffix(args[0], "stack-doctor") {
		path, flags = args[0], args[1:]
	}
	if _, err := os.Stat(path); err != nil {
		return err
	}
	verb := []string{}
	if len(flags) > 0 && !strings.HasPrefix(flags[0], "-") {
		verb = flags[:1]
	}
	help, _ := exec.Command(path, append(verb, "--help")...).CombinedOutput()
	for _, flag := range flags {
		if name, ok := strings.CutPrefix(flag, "--"); ok && !bytes.Contains(help, []byte("-"+name)) {
			return fmt.Errorf("it has no %s", flag)
		}
	}
	if len(help) == 0 {
		return fmt.Errorf("it has no help for %q", verb)
	}
	return nil
}

// systemctl starts units whose files are all there.
func (s *site) systemctl(args []string) error {
	host := filepath.Dir(s.file) + "/host"
	if args[0] == "daemon-reload" {
		return nil
	}
	for _, unit := range args[2:] {
		text, err := os.ReadFile(host + "/etc/systemd/system/" + unit + ".service")
		if err != nil {
			return err
		}
		needs := regexp.MustCompile(`(?m)^(?:ExecStart=|EnvironmentFile=|LoadCredential=key:)(\S+)$`)
		for _, match := range needs.FindAllSubmatch(text, -1) {
			if _, err := os.Stat(host + string(match[1])); err != nil {
				return err
			}
		}
		s.Objects["unit/"+unit] = thing{Text: string(text)}
		if args[0] == "disable" {
			delete(s.Objects, "unit/"+unit)
		}
	}
	return nil
}

// curl asks a unit that runs, or stack-proxy's files.
func (s *site) curl(args []string) error {
	url := args[len(args)-1]
	if url == "http://"+address+":7173/vmlinuz-x86_64" || url == "http://"+address+":7080/ipxe/binary/undionly.kpxe" {
		return nil
	}
	for _, o := range s.Objects {
		at, _, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
		if strings.Contains(o.Text, "_ADMIN_ADDRESS="+at) {
			return nil
		}
	}
	return errors.New("nobody answers")
}

// ip is asked for the way to Tinkerbell.
func (s *site) ip(args []string) error {
	fmt.Println(cmp.Or(args[len(args)-1], "?"), "dev eth1 src", address, "uid 0")
	return nil
}
