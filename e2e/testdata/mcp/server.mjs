// An MCP server of the TypeScript SDKs:
//   node server.mjs <node_modules> <kind>
// The kinds are modern (revision 2026-07-28 alone), both (also the earlier ones, without sessions),
// sessions (the earlier ones), standalone (likewise, and it asks on the client's GET) and stdio.
// Over HTTP it prints its URL, and a POST to /change notifies all clients of changed tools.
import http from 'node:http';
import { createRequire } from 'node:module';
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';

const [folder, kind] = process.argv.slice(2);
const require = createRequire(`${folder}/`);
const text = (text) => ({ content: [{ type: 'text', text }] });
const named = { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] };
let executed = 0; // how often a tool that asks was started

function modern() {
  const { createMcpHandler, McpServer, inputRequired, acceptedContent } = require('@modelcontextprotocol/server');
  const { z } = require('zod');
  const make = () => {
    const server = new McpServer({ name: kind, version: '1' }, { capabilities: { tools: { listChanged: true } } });
    server.registerTool('greet', { inputSchema: z.object({ who: z.string() }) }, async ({ who }) => text(`hello ${who}`));
    server.registerTool('ask', { inputSchema: z.object({ n: z.number() }) }, async ({ n }, { mcpReq }) => {
      const answer = acceptedContent(mcpReq.inputResponses, 'name');
      if (answer) return text(`${n} is ${answer.name}`);
      executed++;
      return inputRequired({ inputRequests: { name: inputRequired.elicit({ message: `${n}`, requestedSchema: named }) } });
    });
    server.registerTool('count', { inputSchema: z.object({}) }, async (_, { mcpReq }) => {
      for (let progress = 1; progress <= 3; progress++) {
        await sleep(150);
        await mcpReq.notify({ method: 'notifications/progress', params: { progressToken: mcpReq._meta.progressToken, progress } });
      }
      return text('counted');
    });
    server.registerTool('executed', {}, async () => text(`${executed}`));
    return server;
  };
  const handler = createMcpHandler(make, { legacy: kind === 'both' ? 'stateless' : 'reject' });
  return {
    change: () => handler.notify.toolsChanged(),
    async serve(req, res) {
      const chunks = [];
      for await (const chunk of req) chunks.push(chunk);
      const gone = new AbortController();
      res.on('close', () => gone.abort());
      const answer = await handler.fetch(new Request(`http://${req.headers.host}${req.url}`, {
        method: req.method, headers: req.headers, signal: gone.signal, body: chunks.length ? Buffer.concat(chunks) : undefined,
      }));
      res.writeHead(answer.status, Object.fromEntries(answer.headers));
      try {
        for await (const chunk of answer.body ?? []) if (!res.destroyed) res.write(chunk);
      } catch {
        // the client disconnected
      }
      res.end();
    },
  };
}

function earlier() {
  const { McpServer } = require('@modelcontextprotocol/sdk/server/mcp.js');
  const { z } = require('zod');
  const server = new McpServer({ name: kind, version: '1' }, { capabilities: { tools: { listChanged: true } } });
  server.registerTool('greet', { inputSchema: { who: z.string() } }, async ({ who }) => text(`hello ${who}`));
  server.registerTool('ask', { inputSchema: { n: z.number() } }, async ({ n }, { requestId }) => {
    executed++;
    const where = kind === 'standalone' ? undefined : { relatedRequestId: requestId };
    const { content } = await server.server.elicitInput({ message: `${n}`, requestedSchema: named }, where);
    return text(`${n} is ${content?.name}`);
  });
  server.registerTool('count', {}, async ({ _meta, sendNotification }) => {
    for (let progress = 1; progress <= 3; progress++) {
      await sleep(150);
      await sendNotification({ method: 'notifications/progress', params: { progressToken: _meta.progressToken, progress } });
    }
    return text('counted');
  });
  server.registerTool('executed', {}, async () => text(`${executed}`));
  return server;
}

function sessions() {
  const { StreamableHTTPServerTransport } = require('@modelcontextprotocol/sdk/server/streamableHttp.js');
  const open = new Map();
  return {
    change() {
      for (const { server } of open.values()) server.sendToolListChanged();
    },
    async serve(req, res) {
      const id = req.headers['mcp-session-id'];
      let session = open.get(id);
      if (!session && id) {
        res.writeHead(404).end();
        return;
      }
      if (!session) {
        session = { server: earlier() };
        session.transport = new StreamableHTTPServerTransport({ sessionIdGenerator: randomUUID, onsessioninitialized: (id) => open.set(id, session) });
        session.transport.onclose = () => open.delete(session.transport.sessionId);
        await session.server.connect(session.transport);
      }
      await session.transport.handleRequest(req, res);
    },
  };
}

if (kind === 'stdio') {
  const { StdioServerTransport } = require('@modelcontextprotocol/sdk/server/stdio.js');
  await earlier().connect(new StdioServerTransport());
} else {
  const { change, serve } = kind === 'modern' || kind === 'both' ? modern() : sessions();
  const server = http.createServer(async (req, res) => {
    if (req.url !== '/change') return serve(req, res);
    change();
    res.end();
  });
  server.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${server.address().port}`));
}
