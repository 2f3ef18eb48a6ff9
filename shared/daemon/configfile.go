package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

// configFlag is the flag --config. Its file sets flags that are given neither on the command line
// nor in the environment.
type configFlag string

// BeforeResolve reads the file. Kong calls it when the flag is given, before it applies defaults.
func (f configFlag) BeforeResolve(ctx *kong.Context, path *kong.Path, file *configFile) error {
	name, _ := ctx.FlagValue(path.Flag).(configFlag)
	if err := file.read(string(name), ctx.Model.Flags); err != nil {
		return err
	}
	ctx.AddResolver(file)
	return nil
}

// configFile is the file of --config: a YAML mapping of flags, without dashes, to values.
type configFile struct {
	values map[string]any // a string, or a []any of them

	// ignored are the flags whose settings, here or in the environment, are wrong.
	ignored map[string]bool
}

// read reads the file for a program with these flags. The error holds a line for each setting
// that is wrong.
func (c *configFile) read(name string, flags []*kong.Flag) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	var doc, second yaml.Node
	file := yaml.NewDecoder(bytes.NewReader(text))
	if err := file.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := file.Decode(&second); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: must hold one YAML document", name)
	}
	c.values = map[string]any{}
	if len(doc.Content) == 0 || doc.Content[0].Tag == "!!null" {
		return nil // nothing but comments
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return fmt.Errorf("%s: must hold lines such as \"log-level: debug\"", name)
	}
	var errs []error
	for i := 0; i < len(root.Content); i += 2 {
		key := root.Content[i]
		if c.ignored[key.Value] {
			continue
		}
		if err := c.set(key.Value, root.Content[i+1], flags); err != nil {
			c.ignored[key.Value] = true
			errs = append(errs, fmt.Errorf("%s:%d: %w", name, key.Line, err))
		}
	}
	return errors.Join(errs...)
}

// set keeps a value, unless the program's flag cannot have it.
func (c *configFile) set(name string, node *yaml.Node, flags []*kong.Flag) error {
	i := slices.IndexFunc(flags, func(f *kong.Flag) bool { return f.Name == name && inFile(f) })
	if i < 0 {
		return unknownSetting(name, flags)
	}
	if _, twice := c.values[name]; twice {
		return fmt.Errorf("%s is set twice", name)
	}
	var value any = node.Value
	if node.Kind == yaml.SequenceNode {
		list := []any{}
		for _, item := range node.Content {
			list = append(list, item.Value)
			if item.Kind != yaml.ScalarNode {
				return fmt.Errorf("%s must be a value or a list of values", name)
			}
		}
		value = list
	} else if node.Kind != yaml.ScalarNode || node.Tag == "!!null" {
		return fmt.Errorf("%s must be a value or a list of values", name)
	}
	if flags[i].Tag.Type == "path" && value == "" {
		return nil // names no file, as in the environment
	}
	if node.Kind == yaml.SequenceNode && !flags[i].IsSlice() {
		return fmt.Errorf("%s takes one value", name)
	}
	probe := reflect.New(flags[i].Target.Type()).Elem()
	if err := flags[i].Parse(kong.Scan().PushTyped(value, kong.FlagValueToken), probe); err != nil {
		return err
	}
	c.values[name] = value
	return nil
}

// inFile reports whether a flag can be set in the file: all flags with a variable of the environment can, but --config.
func inFile(f *kong.Flag) bool { return len(f.Envs) > 0 && f.Name != "config" }

func unknownSetting(name string, flags []*kong.Flag) error {
	plain := strings.ToLower(strings.ReplaceAll(strings.TrimLeft(name, "-"), "_", "-"))
	for _, f := range flags {
		if inFile(f) && IsTypo(plain, f.Name) {
			return fmt.Errorf("there is no setting %q, did you mean %q?", name, f.Name)
		}
	}
	return fmt.Errorf("there is no setting %q", name)
}

// Validate implements [kong.Resolver]; read has checked the values.
func (c *configFile) Validate(*kong.Application) error { return nil }

// Resolve returns the value of a flag that is not on the command line; nil when the environment
// or its default counts.
func (c *configFile) Resolve(_ *kong.Context, _ *kong.Path, f *kong.Flag) (any, error) {
	if slices.ContainsFunc(f.Tag.Envs, isSet) {
		return nil, nil
	}
	return c.values[f.Name], nil
}

func isSet(variable string) bool {
	_, set := os.LookupEnv(variable)
	return set
}

// checker is a [CLI] that can report the problems that would keep its program from starting, a
// line for each, besides the error of Validate.
type checker interface{ Check() error }

// flagName finds the flags in an error.
var flagName = regexp.MustCompile(`--[a-z][a-z0-9-]*`)

// CheckConfig checks the file of --config, the environment and the arguments, without running the
// program. It prints the unknown variables, and then that all is valid, or each problem in a line;
// the error counts these.
//
// Parsing and validation end with the first problem. CheckConfig finds the others by repeating
// both without the settings that problems named. A later problem that names one of these
// is taken for a consequence and not printed.
func (a App) CheckConfig() error {
	a = a.withDefaults()
	ignored := map[string]bool{}
	var problems []string
	for {
		before := maps.Clone(ignored)
		done, err := a.tryConfig(ignored)
		if done {
			return nil
		}
		if err == nil {
			break
		}
		for line := range strings.Lines(err.Error()) {
			flags := flagName.FindAllString(line, -1)
			known := func(flag string) bool { return before[flag[2:]] }
			if line = strings.TrimSpace(line); !slices.ContainsFunc(flags, known) && !slices.Contains(problems, line) {
				problems = append(problems, line)
			}
			for _, flag := range flags {
				ignored[flag[2:]] = true
			}
		}
		if len(ignored) == len(before) {
			break
		}
	}
	a.printVariables()
	if len(problems) == 0 {
		_, err := fmt.Fprintln(a.Stdout, "configuration is valid")
		return err
	}
	if _, err := fmt.Fprintln(a.Stdout, strings.Join(problems, "\n")); err != nil {
		return err
	}
	return fmt.Errorf("problems: %d", len(problems))
}

// tryConfig parses and validates everything but the settings of some flags, to which it adds
// those in the file that are wrong. With done nothing is checked, as after --help.
func (a App) tryConfig(ignored map[string]bool) (done bool, err error) {
	a.Options = append(slices.Clone(a.Options), kong.PostBuild(func(k *kong.Kong) error {
		for _, f := range k.Model.Flags {
			if ignored[f.Name] {
				f.Tag.Envs = nil
			}
		}
		return nil
	}))
	_, err = a.parser(&configFile{ignored: ignored}, func(int) { done = true }).Parse(a.Args)
	if err == nil && !done {
		err = a.check()
	}
	return done, err
}

// check reports the problems that would keep the program from starting.
func (a App) check() error {
	if c, ok := a.CLI.(checker); ok {
		return c.Check()
	}
	return nil
}
