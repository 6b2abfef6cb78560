package charttest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// files is how many random values files are rendered, by seed.
const (
	files = 1000
	seed  = 15
)

var patterns sync.Map

// match compiles a pattern once.
func match(pattern string) func(string) bool {
	compiled, ok := patterns.Load(pattern)
	if !ok {
		compiled, _ = patterns.LoadOrStore(pattern, regexp.MustCompile(pattern))
	}
	re, _ := compiled.(*regexp.Regexp)
	return re.MatchString
}

// TestRandomValues renders a thousand values files that the schema takes. Each is refused with a sentence of the chart's
// own, or makes objects that the API takes: strictly decoded, by the kinds' schemas, and by what no schema says.
func TestRandomValues(t *testing.T) {
	raw := rawSchema(t)
	judge := newJudge(t)
	names := []string{"stack", "a.b", "9lives", strings.Repeat("x", 53), "null", "stack.1-2"}
	var good, refused int
	var mutex sync.Mutex
	var wait sync.WaitGroup
	next := make(chan int)
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for i := range next {
				g := generator{rand.New(rand.NewPCG(seed, uint64(i)))}
				at := release{name: names[g.IntN(len(names))], skipSchema: true}
				values := g.values(raw, 0.3*g.Float64()*g.Float64())
				shown, _ := yaml.Marshal(values)
				if err := valid(values); err != nil {
					t.Errorf("file %d: the generator does not know the schema: %v\n%s", i, err, shown)
					continue
				}
				out, err := inProcess(at, values)
				if err != nil && !strings.Contains(err.Error(), "execution error at (stack/templates/") {
					t.Errorf("file %d: neither rendered nor refused: %v\n%s", i, err, shown)
				}
				for _, document := range out.documents() {
					if fault := judge.faults(document); fault != "" {
						t.Errorf("file %d, release %s: %s\n%s\nof\n%s", i, at.name, fault, document, shown)
					}
				}
				mutex.Lock()
				if err == nil {
					good++
				} else {
					refused++
				}
				mutex.Unlock()
			}
		})
	}
	for i := range files {
		next <- i
	}
	close(next)
	wait.Wait()
	t.Logf("%d rendered, %d refused", good, refused)
	if good < files*4/10 || refused < files/20 {
		t.Errorf("%d rendered, %d refused: the generator asks too little", good, refused)
	}
}

// judge says what the API would not take.
type judge struct {
	mutex     sync.Mutex
	directory string
	compiler  *jsonschema.Compiler
	schemas   map[string]*jsonschema.Schema
}

func newJudge(t *testing.T) *judge {
	t.Helper()
	directory := t.TempDir()
	output(t, "go", "run", "../cmd/kubeschemas", directory)
	return &judge{directory: directory, compiler: jsonschema.NewCompiler(), schemas: map[string]*jsonschema.Schema{}}
}

// of is a kind's schema.
func (j *judge) of(apiVersion, kind string) (*jsonschema.Schema, error) {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	group, version, grouped := strings.Cut(apiVersion, "/")
	name := kind + "-" + version
	if !grouped {
		name = kind + "-" + group
	} else if base, _, _ := strings.Cut(group, "."); base != "" {
		name = kind + "-" + base + "-" + version
	}
	if s, ok := j.schemas[name]; ok {
		return s, nil
	}
	s, err := j.compiler.Compile(filepath.Join(j.directory, strings.ToLower(name)+".json"))
	if err == nil {
		j.schemas[name] = s
	}
	return s, err
}

// faults of a document.
func (j *judge) faults(document string) string {
	var o struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
	}
	var all any
	if err := yaml.UnmarshalStrict([]byte(document), &all); err != nil {
		return "duplicate keys, or no YAML: " + err.Error()
	}
	if err := yaml.Unmarshal([]byte(document), &o); err != nil {
		return err.Error()
	}
	schema, err := j.of(o.APIVersion, o.Kind)
	if err != nil {
		return err.Error()
	}
	if err := schema.Validate(all); err != nil {
		return err.Error()
	}
	path := field.NewPath("metadata")
	faults := metavalidation.ValidateLabels(o.Labels, path.Child("labels"))
	for key := range o.Annotations {
		for _, fault := range validation.IsQualifiedName(strings.ToLower(key)) {
			faults = append(faults, field.Invalid(path.Child("annotations"), key, fault))
		}
	}
	name := validation.IsDNS1123Subdomain
	if o.Kind == "Service" {
		name = validation.IsDNS1035Label
	}
	namespace := validation.IsDNS1123Label(o.Namespace)
	if strings.HasPrefix(o.Kind, "ClusterRole") {
		namespace = nil
		if o.Namespace != "" {
			namespace = []string{"it is in no namespace"}
		}
	}
	for _, fault := range append(name(o.Name), namespace...) {
		faults = append(faults, field.Invalid(path.Child("name"), o.Name, fault))
	}
	if len(faults) > 0 {
		return faults.ToAggregate().Error()
	}
	switch o.Kind {
	case "Service":
		return serviceFaults(document)
	case "Deployment", "DaemonSet":
		return workloadFaults(o.Kind, document)
	}
	return ""
}

func serviceFaults(document string) string {
	var service corev1.Service
	if err := yaml.UnmarshalStrict([]byte(document), &service, yaml.DisallowUnknownFields); err != nil {
		return err.Error()
	}
	var u unique
	for _, port := range service.Spec.Ports {
		u.add("port's name", port.Name)
		u.add("port", fmt.Sprint(port.Port, port.Protocol))
		if port.NodePort != 0 {
			u.add("node port", fmt.Sprint(port.NodePort, port.Protocol))
		}
		if faults := validation.IsValidPortName(port.Name); len(faults) > 0 {
			u.fault = fmt.Sprint(port.Name, faults)
		}
	}
	if len(service.Spec.Ports) == 0 {
		return "the Service has no port"
	}
	return u.fault
}

// workloadFaults are those of a Deployment or a DaemonSet, of which the schema has seen the rest.
func workloadFaults(kind, document string) string {
	var deployment appsv1.Deployment
	selector, template := &deployment.Spec.Selector, &deployment.Spec.Template
	var into any = &deployment
	if kind == "DaemonSet" {
		var daemonSet appsv1.DaemonSet
		selector, template, into = &daemonSet.Spec.Selector, &daemonSet.Spec.Template, &daemonSet
	}
	if err := yaml.UnmarshalStrict([]byte(document), into, yaml.DisallowUnknownFields); err != nil {
		return err.Error()
	}
	var u unique
	for key, value := range (*selector).MatchLabels {
		if template.Labels[key] != value {
			return "the selector does not select the pod: " + key
		}
	}
	if faults := metavalidation.ValidateLabels(template.Labels, field.NewPath("labels")); len(faults) > 0 {
		return faults.ToAggregate().Error()
	}
	volumes := map[string]bool{}
	for _, volume := range template.Spec.Volumes {
		u.add("volume", volume.Name)
		volumes[volume.Name] = true
		if faults := validation.IsDNS1123Label(volume.Name); len(faults) > 0 {
			u.fault = fmt.Sprint(volume.Name, faults)
		}
	}
	for _, c := range append(template.Spec.InitContainers, template.Spec.Containers...) {
		u.add("container", c.Name)
		for _, v := range c.Env {
			u.add("variable of "+c.Name, v.Name)
		}
		for _, m := range c.VolumeMounts {
			u.add("mount of "+c.Name, m.MountPath)
			if !volumes[m.Name] {
				u.fault = "no volume " + m.Name
			}
		}
		for _, p := range c.Ports {
			u.add("container port's name", p.Name)
			if p.ContainerPort == 0 {
				u.fault = "container port 0"
			}
		}
	}
	return u.fault
}

// unique finds what is twice.
type unique struct {
	seen  map[string]bool
	fault string
}

func (u *unique) add(what, name string) {
	if u.seen == nil {
		u.seen = map[string]bool{}
	}
	if key := what + " " + name; u.seen[key] {
		u.fault = key + " is there twice"
	} else {
		u.seen[key] = true
	}
}

// TestTheJudgeFindsFaults has it look at what is wrong on purpose.
func TestTheJudgeFindsFaults(t *testing.T) {
	judge := newJudge(t)
	out := rendersFrom(t, "publicIP: 192.0.2.2\npodLabels: {a: b}")
	document := func(kind string) string {
		for _, d := range out.documents() {
			if strings.Contains(d, "kind: "+kind+"\n") {
				return d
			}
		}
		t.Fatalf("no %s", kind)
		return ""
	}
	for kind, wrong := range map[string][][2]string{
		"Service":    {{"name: \"files\"", "name: \"hegel\""}, {"port: 8080", "port: 50061"}, {"name: \"stack\"", "name: \"9\""}, {"externalTrafficPolicy", "externalTrafficPolice"}},
		"Deployment": {{"a: b", "a: 1"}, {"a: b", "a: b\n        a: c"}, {"- name: stack-proxy", "- name: dhcp-relay"}, {"name: routes, mountPath", "name: router, mountPath"}, {"a: b", "a: b c"}},
	} {
		right := document(kind)
		if fault := judge.faults(right); fault != "" {
			t.Errorf("%s: %s", kind, fault)
		}
		for _, change := range wrong {
			changed := bytes.Replace([]byte(right), []byte(change[0]), []byte(change[1]), 1)
			if string(changed) == right || judge.faults(string(changed)) == "" {
				t.Errorf("%s: %q in place of %q is taken", kind, change[1], change[0])
			}
		}
	}
}
