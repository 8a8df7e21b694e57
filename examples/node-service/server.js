'use strict';

// A service as most are: it answers requests and has never heard of SIGTERM. What it takes to replace it under load
// without losing one of them is the business of what runs in front of it.
//
//   GET  /health        200
//   POST /work?ms=250   200 after that long

const http = require('node:http');

const { PORT = '3000', HOST } = process.env;

const server = http.createServer((request, response) => {
  const url = new URL(request.url, 'http://service');
  if (url.pathname === '/health') {
    response.end('ok\n');
  } else if (url.pathname === '/work' && request.method === 'POST') {
    const ms = Math.min(Math.max(Number(url.searchParams.get('ms')) || 0, 0), 60_000);
    request.resume();
    setTimeout(() => response.end(`done in ${ms} ms\n`), ms);
  } else {
    response.statusCode = 404;
    response.end('try GET /health or POST /work?ms=250\n');
  }
});

server.listen(Number(PORT), HOST, () => {
  console.log(`listening on port ${server.address().port}`);
});

module.exports = server;
