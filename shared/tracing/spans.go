package tracing

import (
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"rejoin/shared/event"
)

// Names of spans, after OpenTelemetry's semantic conventions for messaging: operation and
// template of the destination.
const (
	// NamePublish is a message on its way into the log; it ends with the acknowledgement.
	NamePublish = "publish " + template
	// NameDeliver is an event on its way to one client; it ends when it is in the socket.
	NameDeliver = "deliver " + template
	// NameResume is what a client that comes back has missed, being read.
	NameResume = "resume " + template
	// NameIngest is a message that ingest was sent on NATS, until it is answered.
	NameIngest = "process " + templateIngest
	// NameAsk is what an edge asks a bridge, and NameAnswer that the bridge does it.
	NameAsk    = "send " + templateRPC
	NameAnswer = "process " + templateRPC
)

const (
	template       = "mcp.{partition}.{session}.{life}.{stream}"
	templateIngest = "mcp.ingest.{session}.{stream}"
	templateRPC    = "mcp.rpc.{session}"
)

// Keys of attributes that no convention has.
const (
	// KeySession and KeyStream are the names; they are those of the fields in the log.
	KeySession = attribute.Key("rejoin.session")
	KeyStream  = attribute.Key("rejoin.stream")
	// KeyDelivery counts an event's deliveries by one edge, from 1.
	KeyDelivery = attribute.Key("rejoin.delivery")
	// KeySubscribers is how many streams of this edge an event was for when it came in.
	KeySubscribers = attribute.Key("rejoin.subscribers")
	// KeySource is where events were read: window or log.
	KeySource = attribute.Key("rejoin.source")
	// KeyEvents counts events.
	KeyEvents = attribute.Key("rejoin.events")
	// KeyGap is the reason of a gap.
	KeyGap = attribute.Key("rejoin.gap")
	// KeyDuplicate says that an event was in the log already.
	KeyDuplicate = attribute.Key("rejoin.duplicate")
)

// Publish returns the attributes of a publish.
func Publish(at event.Subject) []attribute.KeyValue {
	return ofEvent("publish", semconv.MessagingOperationTypeSend, at)
}

// Deliver returns the attributes of a delivery.
func Deliver(at event.Subject) []attribute.KeyValue {
	return ofEvent("deliver", semconv.MessagingOperationTypeProcess, at)
}

// Resume returns the attributes of a resume.
func Resume(at event.Subject) []attribute.KeyValue {
	return ofEvent("resume", semconv.MessagingOperationTypeReceive, at)
}

func ofEvent(operation string, kind attribute.KeyValue, at event.Subject) []attribute.KeyValue {
	return append(on(operation, kind, at.String(), template, at.Session, at.Stream),
		semconv.MessagingDestinationPartitionID(strconv.Itoa(at.Partition)))
}

// Ingest returns the attributes of a request to ingest on NATS.
func Ingest(subject, session, stream string) []attribute.KeyValue {
	return on("process", semconv.MessagingOperationTypeProcess, subject, templateIngest, session, stream)
}

// Ask returns the attributes of what an edge asks a bridge, and Answer those of the bridge.
func Ask(subject, session, stream string) []attribute.KeyValue {
	return on("send", semconv.MessagingOperationTypeSend, subject, templateRPC, session, stream)
}

// Answer returns those of what a bridge does then.
func Answer(subject, session, stream string) []attribute.KeyValue {
	return on("process", semconv.MessagingOperationTypeProcess, subject, templateRPC, session, stream)
}

// on returns the attributes of an operation on a message to a NATS subject.
func on(operation string, kind attribute.KeyValue, subject, template, session, stream string) []attribute.KeyValue {
	all := []attribute.KeyValue{
		semconv.MessagingSystemKey.String("nats"), semconv.MessagingOperationName(operation), kind,
		semconv.MessagingDestinationName(subject), semconv.MessagingDestinationTemplate(template), KeySession.String(session),
	}
	if stream != "" {
		all = append(all, KeyStream.String(stream))
	}
	return all
}

// Fail marks a span as failed. What went wrong is in the log: a trace has no error's text,
// as that may say more than where traces go may know.
func Fail(span trace.Span) { span.SetStatus(codes.Error, "") }
