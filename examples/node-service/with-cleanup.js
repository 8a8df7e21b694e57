'use strict';

// The same service with something to put in order at its end: on SIGTERM it takes no new connection, finishes what it
// has, and then needs 1.5 s more. Under `yarn start` with an init that waits for yarn only, it never gets there.

const server = require('./server.js');

process.once('SIGTERM', () => {
  console.log('SIGTERM: cleaning up');
  server.close(() => {
    setTimeout(() => console.log('clean-up finished'), 1500);
  });
});
