package deploy_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"rejoin/deploy/credentials"
	"rejoin/shared/must"
)

// workload is a Deployment or a StatefulSet.
type workload struct {
	name     string
	pod      corev1.PodTemplateSpec
	minReady int32    // seconds
	pods     []string // names of the pods of a StatefulSet
}

// manifests are the objects that kubectl apply -k deploy would send.
type manifests struct {
	workloads []workload
	services  []corev1.Service
	budgets   []policyv1.PodDisruptionBudget
	configs   map[string]map[string]string // names of keys, of ConfigMaps and Secrets
}

// readManifests renders the kustomization, with the bridge, and decodes all objects strictly.
func readManifests(t *testing.T) manifests {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"kustomization.yaml", "kubernetes", "nats", "proxy"} {
		copyTo(t, name, filepath.Join(dir, name))
	}
	keys := filepath.Join(dir, "keys")
	must.NoError(t, errors.Join(credentials.MakeCertificates(keys), credentials.Make(keys), credentials.Share(keys, credentials.SecretFile, "secret")))
	file := filepath.Join(dir, "kustomization.yaml")
	text := read(t, file)
	with := strings.Replace(text, "# - kubernetes/bridge.yaml", "- kubernetes/bridge.yaml", 1)
	if with == text {
		t.Fatal("the bridge is not in the kustomization")
	}
	must.NoError(t, os.WriteFile(file, []byte(with), 0o600))
	resources := must.Value(krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir))(t)
	m := manifests{configs: map[string]map[string]string{}}
	for _, r := range resources.Resources() {
		data := must.Value(r.AsYAML())(t)
		strict := func(object any) {
			if err := yaml.UnmarshalStrict(data, object); err != nil {
				t.Errorf("%s %s: %v", r.GetKind(), r.GetName(), err)
			}
		}
		if r.GetNamespace() != "rejoin" && r.GetKind() != "Namespace" {
			t.Errorf("%s %s is in the namespace %q", r.GetKind(), r.GetName(), r.GetNamespace())
		}
		switch r.GetKind() {
		case "Namespace":
			strict(new(corev1.Namespace))
		case "ConfigMap":
			var c corev1.ConfigMap
			strict(&c)
			m.configs["ConfigMap "+c.Name] = c.Data
		case "Secret":
			var s corev1.Secret
			strict(&s)
			m.configs["Secret "+s.Name] = map[string]string{}
			for key, value := range s.Data {
				m.configs["Secret "+s.Name][key] = string(value)
			}
		case "Service":
			var s corev1.Service
			strict(&s)
			m.services = append(m.services, s)
		case "PodDisruptionBudget":
			var p policyv1.PodDisruptionBudget
			strict(&p)
			m.budgets = append(m.budgets, p)
		case "Deployment":
			var d appsv1.Deployment
			strict(&d)
			m.workloads = append(m.workloads, workload{d.Name, d.Spec.Template, d.Spec.MinReadySeconds, nil})
			if !contains(d.Spec.Template.Labels, d.Spec.Selector.MatchLabels) {
				t.Errorf("%s does not select its own pods", d.Name)
			}
		case "StatefulSet":
			var s appsv1.StatefulSet
			strict(&s)
			w := workload{s.Name, s.Spec.Template, s.Spec.MinReadySeconds, nil}
			first := int32(0)
			if s.Spec.Ordinals != nil {
				first = s.Spec.Ordinals.Start
			}
			for n := range *s.Spec.Replicas {
				w.pods = append(w.pods, fmt.Sprintf("%s-%d", s.Name, first+n))
			}
			m.workloads = append(m.workloads, w)
			if !contains(s.Spec.Template.Labels, s.Spec.Selector.MatchLabels) {
				t.Errorf("%s does not select its own pods", s.Name)
			}
		default:
			t.Errorf("%s is not checked", r.GetKind())
		}
	}
	return m
}

func TestKubernetes_ServicesAndBudgetsSelectPods(t *testing.T) {
	t.Parallel()
	m := readManifests(t)
	for _, s := range m.services {
		selected := m.selected(s.Spec.Selector)
		if len(selected) != 1 {
			t.Errorf("the Service %s selects %v", s.Name, selected)
			continue
		}
		for _, p := range s.Spec.Ports {
			target := p.TargetPort
			if target == (intstr.IntOrString{}) {
				target = intstr.FromInt32(p.Port)
			}
			if !hasPort(selected[0].pod.Spec.Containers[0], target) {
				t.Errorf("the Service %s has no port %s of its pods", s.Name, target.String())
			}
		}
	}
	budgets := map[string]bool{}
	for _, p := range m.budgets {
		selected := m.selected(p.Spec.Selector.MatchLabels)
		if len(selected) != 1 {
			t.Errorf("the budget %s selects %v", p.Name, selected)
			continue
		}
		budgets[selected[0].name] = true
		// A NATS server that is not ready may be the one with the entries that the others miss. The
		// pods of the services hold no data of their own, and a drain that waits for them may wait for
		// NATS.
		always := p.Spec.UnhealthyPodEvictionPolicy != nil && *p.Spec.UnhealthyPodEvictionPolicy == policyv1.AlwaysAllow
		if always != (selected[0].name != "nats") {
			t.Errorf("pods of %s that are not ready may be evicted at any time: %t", selected[0].name, always)
		}
	}
	for _, name := range []string{"nats", "ingest", "sse-edge", "janitor", "proxy"} {
		if !budgets[name] {
			t.Errorf("%s has no PodDisruptionBudget", name)
		}
	}
	// Names that the configuration files use.
	hosts := regexp.MustCompile(`tls://([\w-]+):6222|"([\w-]+)\$\{REJOIN_PROXY_DOMAIN\}:(\d+)" port (\d+)`)
	found := hosts.FindAllStringSubmatch(read(t, "nats/cluster.conf")+read(t, "proxy/haproxy.cfg"), -1)
	if len(found) < 7 {
		t.Errorf("there are only %v", found)
	}
	for _, host := range found {
		if !slices.ContainsFunc(m.services, func(s corev1.Service) bool {
			ports := ""
			for _, p := range s.Spec.Ports {
				ports += fmt.Sprint(p.Port, " ")
			}
			return s.Name == host[1] || s.Name == host[2] && ports == host[3]+" "+host[4]+" "
		}) {
			t.Errorf("there is no Service for %s", host[0])
		}
	}
}

func TestKubernetes_PodsAreGuardedAndBounded(t *testing.T) {
	t.Parallel()
	m := readManifests(t)
	for _, w := range m.workloads {
		spec := w.pod.Spec
		c := spec.Containers[0]
		if !strings.Contains(c.Image, ":") || strings.HasSuffix(c.Image, ":latest") {
			t.Errorf("%s has the image %s", w.name, c.Image)
		}
		if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() {
			t.Errorf("%s has no limits", w.name)
		}
		// Readiness may take its time, and must not end a process. A proxy that has all connections that it may have
		// accepts no probe, and would be ended with all of them.
		if c.ReadinessProbe == nil || (c.LivenessProbe == nil) != (w.name == "proxy") || c.LivenessProbe != nil && fmt.Sprint(c.ReadinessProbe.ProbeHandler) == fmt.Sprint(c.LivenessProbe.ProbeHandler) {
			t.Errorf("%s is probed by %v and %v", w.name, c.ReadinessProbe, c.LivenessProbe)
		}
		// Pods found by name are replaced one after the other only if caches of DNS, 30 s old, have the new one.
		if w.minReady <= 30 && w.name != "proxy" && w.name != "bridge" {
			t.Errorf("%s counts as available after %d s", w.name, w.minReady)
		}
		// Without most of its servers NATS stores nothing.
		if spread := spec.TopologySpreadConstraints; len(spread) != 1 || w.name == "nats" && spread[0].WhenUnsatisfiable != corev1.DoNotSchedule {
			t.Errorf("pods of %s may be on one node: %v", w.name, spread)
		}
		// All proxies would be out together when one kind of service is unavailable.
		if w.name == "proxy" && !strings.Contains(fmt.Sprint(c.ReadinessProbe.Exec.Command), "/ready") {
			t.Errorf("the proxy is ready by %v", c.ReadinessProbe.Exec.Command)
		}
		for _, p := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
			if p != nil && p.HTTPGet != nil && !hasPort(c, p.HTTPGet.Port) {
				t.Errorf("%s is probed at %s", w.name, p.HTTPGet.Port.String())
			}
		}
		if s := spec.SecurityContext; s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || !*c.SecurityContext.ReadOnlyRootFilesystem || *c.SecurityContext.AllowPrivilegeEscalation {
			t.Errorf("%s may do too much", w.name)
		}
		if *spec.EnableServiceLinks || *spec.AutomountServiceAccountToken {
			t.Errorf("%s is given what it does not need", w.name)
		}
		if least := int64(35); w.name != "proxy" && *spec.TerminationGracePeriodSeconds < least {
			t.Errorf("%s has %d s to stop", w.name, *spec.TerminationGracePeriodSeconds)
		}
	}
}

func TestKubernetes_ReferencesExist(t *testing.T) {
	t.Parallel()
	m := readManifests(t)
	for _, w := range m.workloads {
		files := map[string]bool{} // where containers see them
		c := w.pod.Spec.Containers[0]
		for _, v := range w.pod.Spec.Volumes {
			var in []string
			switch {
			case v.ConfigMap != nil:
				in = m.keys(t, w, "ConfigMap "+v.ConfigMap.Name)
			case v.Secret != nil:
				in = m.keys(t, w, "Secret "+v.Secret.SecretName)
			case v.Projected != nil:
				for _, s := range v.Projected.Sources {
					if s.ConfigMap != nil {
						in = append(in, m.keys(t, w, "ConfigMap "+s.ConfigMap.Name)...)
						continue
					}
					keys := m.keys(t, w, "Secret "+s.Secret.Name)
					for _, item := range s.Secret.Items {
						if !slices.Contains(keys, item.Key) {
							t.Errorf("%s: there is no key %s", w.name, item.Key)
						}
						in = append(in, item.Path)
					}
				}
			}
			for _, mount := range c.VolumeMounts {
				for _, name := range in {
					if mount.Name == v.Name {
						files[mount.MountPath+"/"+name] = true
					}
				}
			}
		}
		for _, value := range m.environment(t, w) {
			if strings.HasPrefix(value, "/") && !files[value] {
				t.Errorf("%s: there is no %s", w.name, value)
			}
		}
		for _, arg := range append(c.Args, strings.Fields(strings.Join(c.Command, " "))...) {
			if (strings.HasSuffix(arg, ".conf") || strings.HasSuffix(arg, ".cfg")) && !files[arg] {
				t.Errorf("%s: there is no %s", w.name, arg)
			}
		}
	}
}

// The manifests set only variables of the documented flags, which TestDocument_FlagTables compares with --help.
func TestKubernetes_VariablesAreOfThePrograms(t *testing.T) {
	t.Parallel()
	m := readManifests(t)
	_, table, _ := strings.Cut(read(t, "../docs/configuration.md"), "<!-- flags -->\n")
	for _, w := range m.workloads {
		if !slices.Contains(credentials.Services, w.name) {
			continue
		}
		variables := map[string]bool{}
		for row := range strings.SplitSeq(table, "\n") {
			if cells := strings.Split(row, " | "); len(cells) > 1 && (cells[1] == "all" || slices.Contains(strings.Split(cells[1], ", "), w.name)) {
				variables[strings.ToUpper(strings.NewReplacer("| `--", "REJOIN_", "`", "", "-", "_").Replace(cells[0]))] = true
			}
		}
		env := m.environment(t, w)
		if len(env) < 5 {
			t.Errorf("%s has only %v", w.name, env)
		}
		for name := range env {
			// An empty item of the list is one. The API server refuses the whole object for it.
			if name == "" {
				t.Errorf("%s has a variable without a name", w.name)
			}
			if strings.HasPrefix(name, "REJOIN_") && !variables[name] {
				t.Errorf("%s has no variable %s", w.name, name)
			}
		}
		if env["REJOIN_ADMIN_ADDR"] == "" || env["REJOIN_NATS_NKEY"] == "" {
			t.Errorf("%s has %v", w.name, env)
		}
	}
}

// NATS takes the files as they are mounted.
func TestKubernetes_NATSConfigurationIsValid(t *testing.T) {
	t.Parallel()
	m := readManifests(t)
	dir := t.TempDir()
	for name, data := range m.configs {
		folder := dir
		switch {
		case strings.HasPrefix(name, "Secret keys-nats-"):
			folder = filepath.Join(dir, "keys")
		case !strings.HasPrefix(name, "ConfigMap nats-"):
			continue
		}
		for key, text := range data {
			text = strings.ReplaceAll(text, "/etc/nats/", dir+"/")
			must.NoError(t, errors.Join(os.MkdirAll(folder, 0o700), os.WriteFile(filepath.Join(folder, key), []byte(text), 0o600)))
		}
	}
	options := must.Value(server.ProcessConfigFile(filepath.Join(dir, "cluster.conf")))(t)
	var hosts []string
	for _, route := range options.Routes {
		hosts = append(hosts, route.Hostname())
	}
	i := slices.IndexFunc(m.workloads, func(w workload) bool { return w.name == "nats" })
	if pods := m.workloads[i].pods; !slices.Equal(pods, hosts) || !slices.Equal(pods, credentials.RouteNames) {
		t.Errorf("the pods are %v, the routes %v, the certificate is for %v", pods, hosts, credentials.RouteNames)
	}
}

// selected returns the workloads of which a selector selects pods.
func (m manifests) selected(selector map[string]string) (all []workload) {
	const podName = "statefulset.kubernetes.io/pod-name"
	for _, w := range m.workloads {
		rest := map[string]string{}
		for key, value := range selector {
			if key != podName || !slices.Contains(w.pods, value) {
				rest[key] = value
			}
		}
		if len(selector) > 0 && contains(w.pod.Labels, rest) {
			all = append(all, w)
		}
	}
	return all
}

// keys returns the keys of a ConfigMap or Secret.
func (m manifests) keys(t *testing.T, w workload, of string) (keys []string) {
	t.Helper()
	if m.configs[of] == nil {
		t.Errorf("%s: there is no %s", w.name, of)
	}
	for key := range m.configs[of] {
		keys = append(keys, key)
	}
	return keys
}

// environment returns the variables of a workload's container.
func (m manifests) environment(t *testing.T, w workload) map[string]string {
	t.Helper()
	env := map[string]string{}
	c := w.pod.Spec.Containers[0]
	for _, from := range c.EnvFrom {
		name := "ConfigMap " + from.ConfigMapRef.Name
		for _, key := range m.keys(t, w, name) {
			env[key] = m.configs[name][key]
		}
	}
	for _, v := range c.Env {
		env[v.Name] = v.Value
	}
	return env
}

func contains(labels, selector map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return true
}

func hasPort(c corev1.Container, port intstr.IntOrString) bool {
	return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool {
		return port.Type == intstr.String && p.Name == port.StrVal || port.Type == intstr.Int && p.ContainerPort == port.IntVal
	})
}

func copyTo(t *testing.T, from, to string) {
	t.Helper()
	if must.Value(os.Stat(from))(t).IsDir() {
		must.NoError(t, os.CopyFS(to, os.DirFS(from)))
		return
	}
	must.NoError(t, os.WriteFile(to, []byte(read(t, from)), 0o600))
}

func read(t *testing.T, file string) string {
	t.Helper()
	data := must.Value(os.ReadFile(file))(t)
	return string(data)
}
